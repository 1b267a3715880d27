"""Does XLA know the flags: its own parser reads them, in a process of its own, and says all that is wrong.

The parser aborts at the first value that it cannot read, so what it has complained of is taken out and the rest is shown
to it again. A quarter of a second a turn, no GPU.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.issue import Issue, Severity
from launcher.preflight.xla_names import Flag, known
from launcher.render import xla
from launcher.suggest import suggest

TIMEOUT_S = 60

PROGRAM = """
import json, sys
try:
    import jaxlib
    from jaxlib import xla_client
except ImportError as error:
    print(json.dumps({"missing": f"{type(error).__name__}: {error}"}))
    sys.exit()
print(json.dumps({"version": jaxlib.__version__, "folder": jaxlib.__path__[0]}), flush=True)
xla_client.make_cpu_client()
"""
"""XLA parses XLA_FLAGS when its first client is made; the flags for GPUs are among them in every build."""

LIBRARIES = ("libjax_common.so", "xla_extension.so")
"""Where jaxlib keeps XLA, newest first."""

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_END = re.compile(r"^xla_(?:gpu_|cpu_)?(?:experimental_)?")
_VALUE = re.compile(r"(?:Couldn't interpret value .* for flag |Illegal value for --)(xla_\w+)")


@dataclass(frozen=True)
class Verdict:
    """`jaxlib` is the version that judged, "" when none could; `issues` is empty when it accepts all of the `flags`."""

    jaxlib: str
    flags: int
    issues: tuple[Issue, ...] = field(default=())

    @property
    def accepted(self) -> bool:
        """Whether the flags can be used as they are."""
        return not self.issues


@dataclass(frozen=True)
class _Answer:
    code: int
    version: str = ""
    library: Path | None = None
    missing: str = ""
    words: str = ""


def _error(code: str, where: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, where, message, hint)


def _ask(lines: list[str], python: str) -> _Answer:
    """One process that parses these flags.

    Raises:
        OSError, subprocess.TimeoutExpired: it does not start, or not end.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    environment = kept | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(lines)}
    done = subprocess.run(
        [python, "-c", PROGRAM], env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
    )
    first = done.stdout.partition("\n")[0]
    told = json.loads(first) if first.startswith("{") else {}
    folder = Path(told.get("folder", ""))
    library = next((folder / name for name in LIBRARIES if (folder / name).is_file()), None)
    return _Answer(done.returncode, told.get("version", ""), library, told.get("missing", ""), done.stderr)


def _unknown(name: str, flags: Mapping[str, Flag], judge: str) -> Issue:
    # Nearly all begin alike: only what comes after that says which one was meant.
    ends = {_END.sub("", flag): flag for flag in flags}
    near = [ends[end] for end in suggest(_END.sub("", name), ends)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"take it out: type ~xla.flags.{name}"
    return _error("XLA_FLAG_UNKNOWN", f"xla.flags.{name}", f"{judge} has no flag {name}", hint)


def _illegal(name: str, value: object, flags: Mapping[str, Flag], judge: str) -> Issue:
    if isinstance(value, str) and value.strip("'\"") != value and value[:1] + value[-1:] not in ("''", '""'):
        hint = "leave out the quotes inside the quotes"
    elif name in flags:
        hint = f"wanted {flags[name].wanted}"
    else:
        hint = "see openxla.org/xla/flags_guidance"
    return _error("XLA_FLAG_VALUE", f"xla.flags.{name}", f"{name}={value}: {judge} cannot read the value", hint)


def _complaints(words: str) -> tuple[set[str], set[str]]:
    """Unknown names, and names with an illegal value, in what XLA wrote before it aborted."""
    unknown = {name for line in _UNKNOWN.findall(words) for name in re.findall(r"--(xla_\w+)", line)}
    return unknown, set(_VALUE.findall(words))


def _known(library: Path | None) -> dict[str, Flag]:
    try:
        return known(library) if library else {}
    except OSError:
        return {}


def written(chosen: Mapping[str, object]) -> tuple[dict[str, str], list[Issue]]:
    """Each flag as it will stand in XLA_FLAGS, and what cannot be written at all."""
    lines: dict[str, str] = {}
    issues = []
    for name, value in sorted(chosen.items()):
        try:
            lines[name] = xla.flags({name: value})[0]
        except ValueError as error:
            message = str(error).removeprefix(f"xla.flags.{name}: ")
            hint = "leave out the quotes inside the quotes" if "quotes" in message else "correct it as the text says"
            issues.append(_error("XLA_FLAG_TEXT", f"xla.flags.{name}", message, hint))
    return lines, issues


def _said(words: str) -> str:
    """What it said instead of a version; what repeats our program has not understood it."""
    if "import json, sys" in words and "jaxlib import" in words:
        return "it is no Python"
    return (words.strip().splitlines() or ["no output"])[-1][:200]


def _judge(chosen: Mapping[str, object], lines: dict[str, str], python: str) -> tuple[str, list[Issue]]:
    """jaxlib's version and every complaint; the flags complained of are taken out of `lines`."""
    issues: list[Issue] = []
    flags: dict[str, Flag] | None = None
    while True:
        answer = _ask(list(lines.values()), python)
        if answer.missing or not answer.version:
            seen = answer.missing or _said(answer.words)
            hint = "name a Python that has it with --python, or make one: python3.12 -m pip install 'launcher[local]'"
            return "", [_error("JAX_MISSING", "python", f"{python} cannot import jaxlib ({seen})", hint)]
        unknown, illegal = (found & set(lines) for found in _complaints(answer.words))
        if answer.code == 0:
            return answer.version, issues
        if not unknown | illegal:
            last = next((line for line in answer.words.splitlines() if line.startswith("F")), answer.words.strip())
            words = last.partition("] ")[2][:300] or last[:300]
            hint = f"try them by hand: XLA_FLAGS={shlex.quote(' '.join(lines.values()))}"
            return answer.version, [*issues, _error("XLA_FLAGS_REFUSED", "xla.flags", f"XLA stops: {words}", hint)]
        flags = _known(answer.library) if flags is None else flags
        judge = f"jaxlib {answer.version}"
        issues += [_unknown(name, flags, judge) for name in sorted(unknown)]
        issues += [_illegal(name, chosen[name], flags, judge) for name in sorted(illegal)]
        for name in unknown | illegal:
            del lines[name]


def check(chosen: Mapping[str, object], python: str = sys.executable) -> Verdict:
    """XLA's own word on an experiment's flags.

    Args:
        chosen: flag without dashes -> value, as in xla.flags.
        python: the interpreter whose jaxlib is asked. The container's may be another: a flag comes and goes with versions.
    """
    lines, issues = written(chosen)
    try:
        version, more = _judge(chosen, lines, python)
    except OSError as error:
        message = f"{python} does not start: {error.strerror}"
        return Verdict("", len(chosen), (_error("JAX_MISSING", "python", message, "name another with --python"),))
    except subprocess.TimeoutExpired:
        message = f"XLA did not read the flags within {TIMEOUT_S} s"
        return Verdict(
            "", len(chosen), (_error("PREFLIGHT_TIMEOUT", "xla.flags", message, "try again on an idle machine"),)
        )
    return Verdict(version, len(chosen), tuple(sorted([*issues, *more], key=Issue.rank)))
