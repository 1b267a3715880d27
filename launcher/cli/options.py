"""Options of the verbs, readable between overrides, with mistakes told like every other."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

from launcher.issue import Issue, Refused, Severity
from launcher.suggest import suggest


class VerbParser(argparse.ArgumentParser):
    """argparse, but a mistake is an Issue, and the words of two examples end its help."""

    def __init__(self, verb: str, what: str, examples: Sequence[str]) -> None:
        shown = "\n".join(f"  python -m launcher {line}" for line in examples)
        super().__init__(
            prog=f"python -m launcher {verb}",
            description=what,
            epilog=f"examples:\n{shown}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """argparse's complaint as an Issue (exit code 1)."""
        hint = f"`{self.prog} --help` lists the options"
        wrong = re.search(r"unrecognized arguments: (-\S+)", message)
        near = suggest(wrong[1].partition("=")[0], self._option_string_actions) if wrong else []
        if near:
            hint = f"did you mean {' or '.join(near)}? {hint}"
        raise Refused(Issue("OPTION_UNKNOWN", Severity.ERROR, "", message, hint))


def positive(word: str) -> float:
    """For add_argument(type=...): a number above 0, not infinite."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r}, wanted a number above 0")
    return number


def at_least_one(word: str) -> int:
    """For add_argument(type=...): a whole number from 1 on."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r}, wanted a whole number from 1 on")
    return int(word)


def composing_parser(verb: str, what: str, examples: Sequence[str]) -> VerbParser:
    """For verbs that take an experiment: overrides anywhere between the options."""
    parser = VerbParser(verb, what, examples)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="+exp=NAME and what differs from it")
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of your own groups, laid out as the launcher's conf/; it wins (also $LAUNCHER_CONF)",
    )
    return parser


def running_parser(verb: str, what: str, examples: Sequence[str]) -> VerbParser:
    """For verbs that look at runs."""
    parser = VerbParser(verb, what, examples)
    add_runs(parser)
    return parser


def add_runs(parser: VerbParser) -> None:
    """The folder of runs."""
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (else $LAUNCHER_RUNS, else ./runs)")


@contextlib.contextmanager
def writing(words: str, hint: str) -> Iterator[None]:
    """What an option names shall be written. Raises Refused: the disk does not take it. `words`: as it was typed."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) not in words else ""
        message = f"{words} cannot be written: {error.strerror or error}{where}"
        raise Refused(Issue("OUTPUT", Severity.ERROR, "", message, hint)) from error
