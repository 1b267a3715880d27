"""preflight xla | maxtext | aot | node: let the real thing judge an experiment before it queues."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.cli.main import print_issues
from launcher.cli.options import VerbParser, composing_parser, positive, writing
from launcher.issue import Issue, Refused, Severity
from launcher.suggest import suggest

CHECKS: Mapping[str, tuple[str, str]] = {
    "xla": ("launcher.cli.preflight:xla", "are the XLA flags known, their values legal, their quotes right (a second)"),
    "maxtext": ("launcher.cli.preflight:maxtext", "does MaxText itself accept the configuration (seconds)"),
    "aot": (
        "launcher.cli.preflight:aot",
        "compile the real train step for the GPUs, with none: memory and traffic (minutes)",
    ),
    "node": ("launcher.cli.preflight_node:node", "is each node healthy: GPUs, links, memory, a short computation"),
}
"""check -> (module:function, one line for the help)."""

HELP = """\
usage: python -m launcher preflight CHECK +exp=NAME [KEY=VALUE ...]

Lets the real thing judge an experiment before it queues. xla, maxtext and aot need no GPU.

{checks}

examples:
  python -m launcher preflight xla +exp=dsv3_128gpu
  python -m launcher preflight aot +exp=dsv3_128gpu_fits

`preflight CHECK --help` shows a check's options. Exit codes: 0 passed, 1 did not.
"""


def preflight(words: list[str]) -> int:
    """Pick the check: the first word that names one."""
    plain = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    named = next((word for word in plain if word in CHECKS), plain[0] if plain else "")
    if named in CHECKS:
        words = [word for i, word in enumerate(words) if i != words.index(named)]
        module, _, function = CHECKS[named][0].partition(":")
        check: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
        return check(words)
    if not named and {"-h", "--help"} & set(words):
        print(HELP.format(checks="\n".join(f"  {name:8} {line}" for name, (_, line) in CHECKS.items())), end="")
        return 0
    near = suggest(named, CHECKS) if named else []
    message = f"`{named}` is no check of preflight" if named else "preflight wants the name of one check"
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(CHECKS)}"
    raise Refused(Issue("CHECK_UNKNOWN", Severity.ERROR, "", message, hint))


def _parser(check: str, what: str, examples: list[str], needs: str) -> VerbParser:
    parser = composing_parser(f"preflight {check}", what, [f"preflight {check} {line}" for line in examples])
    parser.add_argument(
        "--python",
        metavar="PY",
        default=sys.executable,
        help=f"a Python that has {needs} (default: the launcher's own)",
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    return parser


def _told(options: argparse.Namespace, content: Mapping[str, object]) -> None:
    if options.json:
        print(json.dumps(content, indent=2))


def xla(words: list[str]) -> int:
    """XLA's own parser reads the flags."""
    parser = _parser(
        "xla",
        "Let XLA's own parser read the experiment's flags: unknown names, illegal values, wrong quotes, all at once.",
        ["+exp=dsv3_128gpu", "+exp=dsv3_128gpu +xla.flags.xla_gpu_graph_min_graph_size=1 --json"],
        "jaxlib",
    )
    options = parser.parse_intermixed_args(words)
    from launcher.cli.composing import composer_of, planned
    from launcher.preflight import xla as flags

    made = planned(composer_of(options), options.overrides)
    verdict = flags.check(made.experiment.xla.flags, options.python)
    _told(options, {"accepted": verdict.accepted, **dataclasses.asdict(verdict)})
    if not options.json:
        if verdict.issues:
            raise Refused(*verdict.issues)
        count = (
            f"the {verdict.flags} flags" if verdict.flags else "no flags: nothing is set, nothing can be wrong; seen:"
        )
        print(f"XLA of jaxlib {verdict.jaxlib} reads {count}")
        if made.experiment.container.image:
            print(f"  the container ({made.experiment.container.image}) may have another: ask it with --python there")
    return 0 if verdict.accepted else 1


def maxtext(words: list[str]) -> int:
    """MaxText's own configuration code reads the bundle."""
    parser = _parser(
        "maxtext",
        "Let MaxText itself read the configuration, on as many fake devices as there will be GPUs (seconds, no GPU).",
        ["+exp=dsv3_128gpu", "+exp=dsv3_128gpu --python /opt/venv/bin/python --json"],
        "MaxText",
    )
    options = parser.parse_intermixed_args(words)
    from launcher.cli.checking import maxtext as checked
    from launcher.cli.composing import composer_of, planned, sound

    return checked(sound(planned(composer_of(options), options.overrides)), options.python, options.json)


def _aot_options(words: list[str]) -> argparse.Namespace:
    parser = _parser(
        "aot",
        "Compile the experiment's real train step for its GPUs and mesh, with no GPU: memory against what a GPU has,\n"
        "collectives by mesh axis and fabric, which remat names matched, and how the formulas of `plan` compare.",
        ["+exp=dsv3_128gpu_fits", "+exp=dsv3_128gpu trainer.per_device_batch_size=5 --dump seen"],
        "MaxText, jax and jax-cuda13-pjrt (pip install 'launcher[aot]')",
    )
    parser.add_argument(
        "--gpu", metavar="FILE", type=Path, help="a GPU that is not described here: GpuTargetConfigProto as text"
    )
    parser.add_argument(
        "--dump", metavar="DIR", type=Path, help="keep the compiled module, the answer and XLA's own dumps"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="compile although the answer is remembered ($LAUNCHER_CACHE)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=positive, default=1800, help="bound of the compilation (default 1800)"
    )
    return parser.parse_intermixed_args(words)


def aot(words: list[str]) -> int:
    """XLA's GPU compiler compiles the train step."""
    options = _aot_options(words)
    from launcher.cli.aot_text import json_of, text
    from launcher.cli.composing import composer_of, planned, sound
    from launcher.preflight import aot as compiler
    from launcher.preflight import aot_report

    made = sound(planned(composer_of(options), options.overrides))
    if options.dump is not None:  # not after minutes of compiling
        with writing(f"--dump {options.dump}", "name a folder that you may write"):
            options.dump.mkdir(parents=True, exist_ok=True)
    asked = compiler.Asked(
        python=options.python,
        gpu=options.gpu,
        dump=options.dump,
        fresh=options.fresh,
        timeout_s=options.timeout,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    try:
        report = compiler.check(made, asked)
    except Refused as refused:
        if not options.json:
            raise
        _told(options, {"issues": [dataclasses.asdict(issue) for issue in refused.issues]})
        return 1
    issues = aot_report.issues_of(report, made)
    if options.json:
        _told(options, json_of(report, made, issues))
    else:
        print(text(report, made))
        sys.stdout.flush()
        print_issues(issues)
    return 1 if any(issue.severity is Severity.ERROR for issue in issues) else 0
