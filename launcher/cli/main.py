"""Which verb was meant, and how its end becomes an exit code: 0 done, 1 the user's mistake, 2 the system's fault."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from launcher.issue import Issue, Refused, Severity
from launcher.suggest import suggest

VERBS: dict[str, tuple[str, str]] = {
    "submit": (
        "launcher.cli.composing:submit",
        "compose, check, write the bundle and run it (the verb when none is named); -m sweeps",
    ),
    "plan": (
        "launcher.cli.planning:plan",
        "what it means: mesh, NVLink domains, memory, step time, MaxText's keys, every problem",
    ),
    "search": (
        "launcher.cli.planning:search",
        "meshes, batches, rematerialization and offload choices that fit, ranked",
    ),
    "render": ("launcher.cli.composing:render", "everything that will run, as a folder or on stdout"),
    "preflight": (
        "launcher.cli.preflight:preflight",
        "let MaxText, XLA's GPU compiler (with no GPU) and the nodes themselves judge it: xla, maxtext, aot, node",
    ),
    "runs": ("launcher.cli.running:runs", "all runs, a line each"),
    "status": ("launcher.cli.running:status", "one run: state, step, loss, throughput, checkpoint"),
    "logs": ("launcher.cli.running:logs", "what the ranks printed, merged or one; -f follows"),
    "events": ("launcher.cli.watching:events", "what happened, over all attempts, and where the time went; -f follows"),
    "watch": (
        "launcher.cli.watching:watch",
        "the same live: step, loss, speed, MoE headroom, goodput, restarts, events",
    ),
    "cancel": ("launcher.cli.running:cancel", "stop a run, after a checkpoint; --now without"),
    "resume": ("launcher.cli.running:resume", "go on from the last checkpoint"),
    "report": (
        "launcher.cli.reporting:report",
        "what the hardware delivered: step time, TFLOPS/GPU, MFU, loss, goodput; --html with plots",
    ),
    "compare": ("launcher.cli.reporting:compare", "runs side by side: what differs, in settings and in results"),
    "verify": (
        "launcher.cli.reporting:verify",
        "a run against a golden one, within limits; exit code 1 when it is not",
    ),
    "scaling": (
        "launcher.cli.reporting:scaling",
        "one experiment at several sizes: efficiency, measured and predicted",
    ),
    "correctness": (
        "launcher.cli.correctness:correctness",
        "a small model of the family by the exact MoE path and by the experiment's own: do they train alike?",
    ),
    "ladder": (
        "launcher.cli.laddering:ladder",
        "the article's optimisations one by one over an experiment; `ladder bisect A B`: which setting it was",
    ),
    "diff": ("launcher.cli.composing:diff", "what differs between two runs, bundles or experiments"),
    "calibrate": (
        "launcher.cli.planning:calibrate",
        "learn from finished runs how fast this cluster is; `plan` uses it",
    ),
    "doctor": ("launcher.cli.running:doctor", "what this machine can do, what is missing, and the cure"),
}
"""verb -> (module:function, one line for the help)."""

HELP = """\
usage: python -m launcher [VERB] +exp=NAME [KEY=VALUE ...]

{verbs}

  python -m launcher plan +exp=dsv3_128gpu mesh.ici.expert=4    a question, answered in a second
  python -m launcher +exp=moe_tiny_cpu                          trains a small MoE on this machine

Experiments:
{experiments}

`VERB --help` shows a verb's options and examples. Any key can be set (trainer.steps=100), any MaxText key
(+maxtext.KEY=VALUE), XLA flag (+xla.flags.NAME=VALUE) and variable (+env.vars.NAME=VALUE). Runs lie in ./runs, or in
--runs DIR or $LAUNCHER_RUNS. Exit codes: 0 done, 1 your mistake, 2 the system's fault.
"""


def help_text() -> str:
    """The text of `--help`."""
    from launcher.config.groups import CONF_DIR, experiments

    verbs = "\n".join(f"  {name:10} {line}" for name, (_, line) in VERBS.items())
    known = experiments((CONF_DIR,))
    width = max(len(name) for name, _ in known) + 2
    return HELP.format(verbs=verbs, experiments="\n".join(f"  {name:{width}} {text}".rstrip() for name, text in known))


def print_issues(issues: Sequence[Issue]) -> None:
    """Issues on stderr, the worst first: what, where, and what to type."""
    for issue in sorted(issues, key=Issue.rank):
        print(
            f"{issue.severity}: {issue.field}: {issue.message} [{issue.code}]"
            if issue.field
            else f"{issue.severity}: {issue.message} [{issue.code}]",
            file=sys.stderr,
        )
        if issue.hint:
            print(f"       {issue.hint}", file=sys.stderr)


def _verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb and the words left for it; a first word that is neither an override nor an option must be one."""
    first = words[0]
    if "=" in first or first.startswith(("-", "~")):
        return "submit", list(words)
    if first in VERBS:
        return first, list(words[1:])
    near = suggest(first, VERBS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(VERBS)}"
    raise Refused(Issue("VERB_UNKNOWN", Severity.ERROR, "", f"`{first}` is no verb, and no override (KEY=VALUE)", hint))


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if words[0] == "--version":
        from launcher import __version__

        print(f"launcher {__version__}")
        return 0
    name, rest = _verb(words)
    module, _, function = VERBS[name][0].partition(":")
    verb: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
    return verb(rest)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never raises for what a user or a system can do wrong."""
    try:
        code = _run(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
        return code
    except Refused as refused:
        print_issues(refused.issues)
        return 1
    except BrokenPipeError:
        # The reader (`| head`) has left: nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print(
            "error: this is a fault of the launcher, not of your configuration; the lines above say where",
            file=sys.stderr,
        )
        return 2
