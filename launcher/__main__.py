"""`python -m launcher` and the `launcher` command: hands the words to the command line; imports nothing heavy."""

import sys

from launcher.cli.main import main


def entry() -> None:
    """The installed command."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
