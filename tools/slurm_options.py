"""Writes launcher/data/slurm_options.json: every long option of sbatch and srun, read off the programs themselves.

    eval "$(python3 -m slurm.testbed env)"      # or any cluster; no job is started
    python3 tools/slurm_options.py

`--help` leaves some out (--segment, --open-mode), so the names come from getopt's answers: `sbatch --s` is told all
options that begin with s. Whether a name takes a value comes from its complaints too.
"""

import argparse
import json
import re
import string
import subprocess
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "launcher" / "data" / "slurm_options.json"
# Of the plugin that runs containers: README of NVIDIA/pyxis 0.24. It adds them to sbatch and salloc too.
PYXIS = {
    "container-image": "value", "container-mounts": "value", "container-workdir": "value", "container-name": "value",
    "container-save": "value", "container-env": "value", "container-entrypoint-log": "flag",
    **dict.fromkeys(
        [
            "container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root",
            "container-entrypoint", "no-container-entrypoint", "container-writable", "container-readonly",
        ],
        "flag",
    ),
}  # fmt: skip


def told(*words: str) -> str:
    """What a program says when it is called so."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    return done.stderr + done.stdout


def names(program: str) -> list[str]:
    """All long options. A letter that only one option begins with is completed to it by getopt: its name stands in --help."""
    helped = set(re.findall(r"--([a-z][a-z-]+)", told(program, "--help")))
    found = set()
    for letter in string.ascii_lowercase:
        said = told(program, "--test-only", f"--{letter}")
        if "unrecognized option" in said:
            continue
        listed = re.findall(r"'--([a-z-]+)'", said.partition("possibilities:")[2])
        found |= set(listed) or {name for name in helped if name.startswith(letter)}
    return sorted(found)


def kind(program: str, name: str) -> str:
    """flag, value or optional."""
    if "doesn't allow an argument" in told(program, "--test-only", f"--{name}=x"):
        return "flag"
    return "value" if "requires an argument" in told(program, "--test-only", f"--{name}") else "optional"


def main() -> None:
    """Ask both programs, write the file."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    version = told("sbatch", "--version").split()[-1]
    data: dict[str, object] = {
        "source": f"tools/slurm_options.py: getopt's answers of sbatch and srun {version}; pyxis: README of NVIDIA/pyxis 0.24",
        "version": version,
    }
    for program in ("sbatch", "srun"):
        data[program] = {name: kind(program, name) for name in names(program) if name not in PYXIS}
    data["pyxis"] = dict(sorted(PYXIS.items()))
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{DATA}: {', '.join(f'{len(data[part])} of {part}' for part in ('sbatch', 'srun', 'pyxis'))}")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
