"""What sbatch, srun or pyxis would refuse, and what would not come back: said before anybody queues. Silent for other targets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, note, shown, warning
from launcher.plan.slurm import GPU_WORDS, MEMORY, extra, placement, sbatch_options
from launcher.plan.slurm_names import HOMES, PROGRAMS, known, refusal, version
from launcher.suggest import suggest

MARGIN_SECONDS = 60
"""SLURM looks at time limits every 30 s or so and may signal a minute early; the supervisor then needs seconds to queue the job."""

LATEST_SIGNAL = 65535
"""Seconds; sbatch keeps the number in 16 bits ("Invalid --signal specification" above, tried with 24.11)."""

TYPO = 0.8
"""Share of equal characters (difflib's ratio) from which an unknown option is a slip; below it may be a newer SLURM's, or a plugin's."""

_NODE = r"(?:[\w.-]|\[[0-9,-]+\])+"

SHAPES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("account", "qos", "reservation"), (r"[\w.@:/+,-]+", "a name without spaces or quotes")),
    "partition": (r"[\w.,+-]+", "a partition's name, or several with commas"),
    "constraint": (r"[\w.,:&|*()\[\]!+-]+", "features of nodes joined by & or |"),
    **dict.fromkeys(("nodelist", "exclude"), (f"{_NODE}(?:,{_NODE})*", "nodes' names, such as n[0-3],n7")),
    "mpi": (r"[\w.+-]+", "a word that `srun --mpi=list` shows"),
}
"""Field of target.slurm -> what its whole text looks like, and the same in words."""


def _on_slurm(case: Case) -> bool:
    return case.experiment.target.kind == "slurm"


def words(case: Case) -> Iterator[Issue]:
    """The words and names of target.slurm."""
    wanted = case.experiment.target.slurm
    if not _on_slurm(case):
        return
    if wanted.gpus not in GPU_WORDS:
        near = suggest(wanted.gpus, GPU_WORDS) or list(GPU_WORDS)
        typed = " or ".join(f"target.slurm.gpus={word}" for word in near)
        message = f"target.slurm.gpus={shown(wanted.gpus)}: there is {', '.join(GPU_WORDS)}"
        yield error("SLURM_GPUS", "target.slurm.gpus", message, f"type {typed}")
    if wanted.cpus_per_node is not None and wanted.cpus_per_node < 1:
        field = "target.slurm.cpus_per_node"
        message = f"{field}={wanted.cpus_per_node}, wanted 1 or more, or null for all of a node's"
        yield error("SLURM_CPUS", field, message, f"type {field}=null")
    for name, (shape, told) in SHAPES.items():
        seen = getattr(wanted, name)
        if seen is not None and not re.fullmatch(shape, seen):
            field, right = f"target.slurm.{name}", "none" if name == "mpi" else "null"
            yield error(
                "SLURM_NAME", field, f"{field}={shown(seen)}, wanted {told}", f"type {field}={right}, or {told}"
            )
    for line in wanted.setup:
        if "\r" in line or "\0" in line:
            message = "a line of target.slurm.setup has a carriage return (DOS line ends) or a NUL, and sbatch refuses such a script"
            yield error(
                "SLURM_SETUP",
                "target.slurm.setup",
                message,
                "write the lines anew; type 'target.slurm.setup=[]' for none",
            )
            return


def nodes(case: Case) -> Iterator[Issue]:
    """Spare nodes and segments: sbatch says no more than "Requested node configuration is not available"."""
    wanted, mesh = case.experiment.target.slurm, case.mesh
    if not _on_slurm(case):
        return
    field = "target.slurm.spare_nodes"
    if wanted.spare_nodes < 0:
        yield error("SLURM_SPARE_NODES", field, f"{field}={wanted.spare_nodes}, wanted 0 or more", f"type {field}=0")
    elif mesh is not None and placement(case.experiment, mesh) is None:
        room, share = case.experiment.hardware.domain_nodes, mesh.nodes_per_domain
        most = min(wanted.spare_nodes // mesh.domains, room - share)
        offers = ([most * mesh.domains] if most > 0 else []) + [-(-wanted.spare_nodes // share) * share, 0]
        message = (
            f"{wanted.spare_nodes} spare nodes do not split over {mesh.domains} domain{'s' if mesh.domains > 1 else ''} of {share} nodes: "
            f"a spare node helps in the domain of the bad one ({room} nodes at most in each), or spare domains are whole"
        )
        yield error("SLURM_SPARE_NODES", field, message, "type " + ", or ".join(f"{field}={n}" for n in offers))
    if mesh is not None and mesh.nodes_per_domain > 1 and not wanted.segment and wanted.nodelist is None:
        message = (
            f"without --segment SLURM may place a domain's {mesh.nodes_per_domain} nodes in two racks (32 nodes came as 14 + 18); "
            "the run then refuses to start"
        )
        if "segment" not in {option.name for option in extra(wanted.sbatch)}:
            yield warning(
                "SLURM_SEGMENT_OFF",
                "target.slurm.segment",
                message,
                "type target.slurm.segment=true, or name the nodes: target.slurm.nodelist=...",
            )


def clock(case: Case) -> Iterator[Issue]:
    """Time limit, the signal before it, and the trainers' grace have to fit into one another."""
    wanted, grace = case.experiment.target.slurm, case.experiment.trainer.stop_grace_seconds
    if not _on_slurm(case):
        return
    limit, signal = "target.slurm.time_minutes", "target.slurm.signal_seconds"
    if not 1 <= wanted.signal_seconds <= LATEST_SIGNAL:
        message = f"{signal}={wanted.signal_seconds}, wanted 1 to {LATEST_SIGNAL} s before the time limit"
        yield error(
            "SLURM_SIGNAL", signal, message, f"type {signal}={min(max(grace, 0) + 2 * MARGIN_SECONDS, LATEST_SIGNAL)}"
        )
        return
    if wanted.time_minutes < 1:
        message = f"{limit}={wanted.time_minutes}, wanted minutes, 1 or more (sbatch takes 0 for no limit)"
        yield error("SLURM_TIME", limit, message, f"type {limit}=240")
    elif wanted.time_minutes * 60 <= wanted.signal_seconds + MARGIN_SECONDS:
        least = (wanted.signal_seconds + MARGIN_SECONDS) // 60 + 1
        message = (
            f"{limit}={wanted.time_minutes} is not longer than signal_seconds={wanted.signal_seconds} and {MARGIN_SECONDS} s: "
            "the job would be told to stop as soon as it starts"
        )
        yield error("SLURM_TIME", limit, message, f"type {limit}={least} or more, or a smaller {signal}")
    if wanted.signal_seconds < grace + MARGIN_SECONDS:
        message = (
            f"SLURM signals {wanted.signal_seconds} s before the time limit, but the trainers may take stop_grace_seconds={grace} to save: "
            "SLURM would kill them before, and the checkpoint is lost"
        )
        shorter = f"trainer.stop_grace_seconds={max(wanted.signal_seconds - MARGIN_SECONDS, 0)}"
        enough = grace + MARGIN_SECONDS
        typed = f"{signal}={enough}, or {shorter}" if enough <= LATEST_SIGNAL else shorter
        yield warning("SLURM_SIGNAL_SHORT", signal, message, f"type {typed}")


def _unknown(program: str, field: str, name: str) -> Issue:
    """An option that this SLURM lacks: refused as a slip when it is nearly one that exists, or the beginning of one."""
    options = known(program)
    meant = [option for option in options if option.startswith(name)] or suggest(name, options)
    likeness = max(SequenceMatcher(None, name.lower(), option, autojunk=False).ratio() for option in options)
    hint = f"type ~{field}" + (f"; did you mean {' or '.join(meant[:3])}?" if meant else "")
    message = f"{program} {version()} has no option --{name}"
    # getopt would complete the beginning of a name to the whole one.
    cut = any(option.startswith(name) for option in options)
    if cut or likeness >= TYPO or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        return error("SLURM_OPTION_UNKNOWN", field, message, hint)
    message += ", nor has pyxis; right only if your cluster's SLURM is newer or has it from a plugin"
    return warning("SLURM_OPTION_UNKNOWN", field, message, hint)


def _value_refused(program: str, field: str, name: str, value: object) -> Issue | None:
    """What is wrong with the value of an option that exists."""
    kind = known(program)[name]
    if not isinstance(value, str | int | float):
        message = f"--{name} is a list or a mapping, wanted text, a number, or true for a flag"
        return error("SLURM_OPTION_VALUE", field, message, f"type {field}=VALUE with one value")
    if kind == "flag" and value is not True:
        return error(
            "SLURM_OPTION_VALUE", field, f"--{name} of {program} is a flag and takes no value", f"type {field}=true"
        )
    if kind == "value" and (value is True or value == ""):
        return error(
            "SLURM_OPTION_VALUE", field, f"--{name} of {program} needs a value", f"type {field}=VALUE, or ~{field}"
        )
    if re.search(r"[\n\r\0]", str(value)):
        return error(
            "SLURM_OPTION_VALUE",
            field,
            f"--{name} has a line break or a NUL in its value",
            f"type {field}=VALUE on one line",
        )
    return None


def _already(case: Case, program: str) -> dict[str, str]:
    """Options that the launcher writes itself for this experiment -> the field that decides them."""
    if program == "srun" or case.mesh is None:
        return {}
    placed = placement(case.experiment, case.mesh)
    own = case.experiment.target.slurm
    written = [] if placed is None else sbatch_options(case.experiment, case.mesh, placed)
    written = written[: len(written) - len(extra(own.sbatch))]
    decided = {"gpus-per-node": "gpus", "gres": "gpus"}
    return {o.name: f"target.slurm.{decided.get(o.name, o.name)}" for o in written if o.name not in MEMORY}


def extras(case: Case) -> Iterator[Issue]:
    """Each further option of target.slurm.sbatch and target.slurm.srun."""
    wanted = case.experiment.target.slurm
    if not _on_slurm(case):
        return
    for program in PROGRAMS:
        written = _already(case, program)
        chosen = {str(n): v for n, v in getattr(wanted, program).items() if v is not None and v is not False}
        for name, value in chosen.items():
            field = f"target.slurm.{program}.{name}"
            why = refusal(program, name) or (f"{written[name]} says it" if name in written else None)
            if name == "gres" and wanted.gpus != "none" and "gpu" in str(value):
                why = "target.slurm.gpus says it"
            if why is not None:
                home = HOMES[program].get(name)
                typed = f"type ~{field} {home}={shown(value)}" if home else f"type ~{field}"
                yield error("SLURM_OPTION_OWNED", field, f"--{name} of {program} cannot be added: {why}", typed)
            elif name not in known(program):
                yield _unknown(program, field, name)
            else:
                issue = _value_refused(program, field, name, value)
                if issue:
                    yield issue
    memory = [option.name for option in extra(wanted.sbatch) if option.name in MEMORY]
    if len(memory) > 1:
        message = f"sbatch takes one of {', '.join(f'--{name}' for name in memory)}"
        yield error(
            "SLURM_OPTION_VALUE", f"target.slurm.sbatch.{memory[1]}", message, f"type ~target.slurm.sbatch.{memory[1]}"
        )


def resuming(case: Case) -> Iterator[Issue]:
    """What happens to a job that is queued again, and to one that looks for its processes itself."""
    experiment = case.experiment
    if not _on_slurm(case):
        return
    if experiment.target.slurm.requeue and not case.values.flag("enable_checkpointing"):
        message = "target.slurm.requeue=true without checkpoints: a job that is queued again starts from step 0"
        field = "target.slurm.requeue"
        yield warning("SLURM_REQUEUE", field, message, "type checkpoint=periodic, or target.slurm.requeue=false")
    if experiment.trainer.start == "autodetect":
        message = "JAX takes the coordinator's name from SLURM's list of nodes, and misreads names such as rack[1-2]n[1-9] or n[0-3]-ib"
        yield note(
            "SLURM_AUTODETECT",
            "trainer.start",
            message,
            "type trainer.start=env: the worker tells each process, on any cluster",
        )


RULES: tuple[Rule, ...] = (words, nodes, clock, extras, resuming)
