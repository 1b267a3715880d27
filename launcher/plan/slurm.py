"""What SLURM will be asked for: how many nodes, how they must lie together, and each option of sbatch and srun with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config.schema import Experiment
from launcher.plan.mesh import MeshPlan

GPU_WORDS = ("gpus-per-node", "gres", "none")
"""How `target.slurm.gpus` asks for GPUs. Never per task: the one task of a node, the worker, starts a process for each GPU."""

SETTINGS = ("account", "partition", "qos", "reservation", "constraint", "nodelist", "exclude")
"""The fields of target.slurm that are sbatch's options, word for word."""

MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
"""sbatch's ways to ask for memory; they exclude each other."""

IMAGE_PATHS = ("/", "./", "../")
"""How a text begins that pyxis takes for a file rather than for an image of a registry."""

_REGISTRY = re.compile(r"localhost|[A-Za-z0-9.-]+\.[A-Za-z0-9-]+|[A-Za-z0-9.-]+:[0-9]+")


@dataclass(frozen=True)
class Placement:
    """The nodes of a job.

    Attributes:
        nodes: all of them, spare ones included.
        segment: nodes that must lie in one NVLink domain; None when a domain is a node, or nothing is to be said.
        spare_a_domain: spare nodes inside each segment; 0 when the spare nodes are domains of their own, or there are none.
    """

    nodes: int
    segment: int | None
    spare_a_domain: int


@dataclass(frozen=True)
class Option:
    """One option: its long name, its value (None for a flag), and why it is there, where that is not obvious."""

    name: str
    value: str | None = None
    why: str = ""


def placement(experiment: Experiment, mesh: MeshPlan) -> Placement | None:
    """Where the nodes have to lie; None when the spare nodes do not split over the domains.

    `--segment` is the mesh's nodes a domain, not the largest that a rack holds: 36 nodes as three domains of 12 must not
    become two of 18. A spare node helps only in the domain of the bad one, so spare nodes are spread evenly over the
    domains while there is room in them (32 nodes in 2 racks, 2 spare: 17 + 17); else they have to be whole domains.
    """
    wanted, share, domains = experiment.target.slurm, mesh.nodes_per_domain, mesh.domains
    spare = max(wanted.spare_nodes, 0)
    nodes = mesh.nodes + spare
    if share == 1 or not wanted.segment:
        return Placement(nodes, None, 0)
    each, left = divmod(spare, domains)
    if not left and share + each <= experiment.hardware.domain_nodes:
        return Placement(nodes, share + each, each)
    return Placement(nodes, share, 0) if spare % share == 0 else None


def racks(experiment: Experiment, placed: Placement) -> int | None:
    """NVLink domains that the segments need: a domain of 18 nodes holds one segment of 16, or two of 8."""
    if placed.segment is None:
        return None
    in_one = max(experiment.hardware.domain_nodes // placed.segment, 1)
    return -(-placed.nodes // (placed.segment * in_one))


def time_limit(minutes: int) -> str:
    """A time as sbatch and squeue write it.

    >>> time_limit(240), time_limit(2 * 24 * 60 + 5)
    ('04:00:00', '2-00:05:00')
    """
    days, rest = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{rest // 60:02}:{rest % 60:02}:00"


def extra(options: Mapping[str, object]) -> list[Option]:
    """Options that the user added, sorted by name. true: a flag; false or null: taken back.

    >>> extra({"nice": 100, "contiguous": True, "mail-type": None})
    [Option(name='contiguous', value=None, why=''), Option(name='nice', value='100', why='')]
    """
    chosen = {str(name): value for name, value in options.items() if value is not None and value is not False}
    return [Option(name, None if chosen[name] is True else str(chosen[name])) for name in sorted(chosen)]


def _gpus(experiment: Experiment) -> list[Option]:
    count, how = experiment.hardware.gpus_per_node, experiment.target.slurm.gpus
    if experiment.hardware.platform != "gpu" or how == "none":
        return []
    return [Option(how, f"gpu:{count}" if how == "gres" else str(count))]


def _whole_nodes(experiment: Experiment) -> list[Option]:
    """Nodes for ourselves, with all their memory, unless an option of the user's says how much."""
    wanted = experiment.target.slurm
    memory = not {option.name for option in extra(wanted.sbatch)} & set(MEMORY)
    alone = f"Nobody else on these nodes{', and all of their memory' if memory else ''}."
    found = [Option("exclusive", None, alone)] if wanted.exclusive else []
    return [*found, Option("mem", "0", "" if found else "All memory of a node.")] if memory else found


def _nodes(experiment: Experiment, mesh: MeshPlan, placed: Placement) -> list[Option]:
    each, spare = mesh.processes // mesh.nodes, placed.nodes - mesh.nodes
    started = f"{each} trainer processes, one for each GPU" if each > 1 else "one trainer process"
    if experiment.hardware.platform == "cpu":
        started = f"{each} trainer processes" if each > 1 else "one trainer process"
    found = [
        Option(
            "nodes",
            str(placed.nodes),
            f"{mesh.nodes} for the mesh, {spare} spare: a bad node is done without." if spare else "",
        ),
        Option("ntasks-per-node", "1", f"One worker a node; it starts {started}."),
    ]
    if placed.segment is None:
        return found
    held = (
        f"{mesh.nodes_per_domain} for the mesh, {placed.spare_a_domain} spare"
        if placed.spare_a_domain
        else "the mesh's ICI part"
    )
    why = f"Each {placed.segment} nodes inside one NVLink domain (a block of SLURM's topology): {held}."
    return [*found, Option("segment", str(placed.segment), why)]


def sbatch_options(experiment: Experiment, mesh: MeshPlan, placed: Placement) -> list[Option]:
    """Every option of the batch script, in the order in which it is written; the user's own last."""
    wanted = experiment.target.slurm
    found = [Option("job-name", experiment.name)]
    found += [Option(name, getattr(wanted, name)) for name in SETTINGS if getattr(wanted, name) is not None]
    found += _nodes(experiment, mesh, placed) + _gpus(experiment)
    if wanted.cpus_per_node is not None:
        found.append(Option("cpus-per-task", str(wanted.cpus_per_node)))
    found += _whole_nodes(experiment)
    saving = experiment.checkpoint.enable_checkpointing
    saved = "they have a checkpoint written" if saving else "they end the trainers"
    again = "goes on from its last checkpoint" if saving else "starts from step 0, since it has no checkpoints"
    found += [
        Option("time", time_limit(wanted.time_minutes)),
        Option(
            "signal",
            f"USR1@{wanted.signal_seconds}",
            f"{wanted.signal_seconds} s before the time is up, to the workers alone: {saved}.",
        ),
        Option(
            "requeue", None, f"Stopped by its time limit, a preemption or a bad node, it is queued again and {again}."
        )
        if wanted.requeue
        else Option("no-requeue", None, "Once stopped it stays so, until `launcher resume`."),
        Option(
            "output",
            "../slurm-%j.log",
            "The supervisor's own words, beside this folder; a requeued job goes on writing there.",
        ),
        Option("open-mode", "append"),
    ]
    return found + extra(wanted.sbatch)


def srun_options(experiment: Experiment) -> list[Option]:
    """What every step of workers is started with, but nodes, container and files, which the supervisor adds.

    The first task that fails ends the step at once, the others within 60 s of the first that ends (JAX would wait 100 s
    for its heartbeat). CPUs are repeated, since srun does not take them from sbatch; tasks are bound to none, because
    the worker binds each trainer process to the NUMA node of its GPU.
    """
    wanted = experiment.target.slurm
    found = [
        Option("ntasks-per-node", "1"), Option("kill-on-bad-exit", "1"), Option("wait", "60"), Option("mpi", wanted.mpi),
    ]  # fmt: skip
    if wanted.cpus_per_node is not None:
        found.append(Option("cpus-per-task", str(wanted.cpus_per_node)))
    if "cpu-bind" not in {option.name for option in extra(wanted.srun)}:
        found.append(Option("cpu-bind", "none"))
    return found + extra(wanted.srun)


def pyxis_image(image: str) -> str:
    """An image as pyxis wants it: [USER@][REGISTRY#]IMAGE[:TAG], or a path that begins with / or ./ (a .sqsh).

    In the usual form, a first part with a dot or a port is the registry; pyxis would look ghcr.io/nvidia/jax up at Docker Hub.

    >>> pyxis_image("ghcr.io/nvidia/jax:maxtext-2026-09-09"), pyxis_image("nvidia/cuda:13"), pyxis_image("/images/jax.sqsh")
    ('ghcr.io#nvidia/jax:maxtext-2026-09-09', 'nvidia/cuda:13', '/images/jax.sqsh')
    """
    image = image.removeprefix("docker://")
    if image.startswith(IMAGE_PATHS) or "#" in image or "://" in image:
        return image
    registry, slash, rest = image.partition("/")
    user, at, host = registry.rpartition("@")
    return f"{user}{at}{host}#{rest}" if slash and _REGISTRY.fullmatch(host) else image


def imported_file(image: str, folder: str) -> str | None:
    """The file in `folder` that an image of a registry is imported to; None for an image that is a file already.

    Named as enroot itself would name it, with the whole reference in it.

    >>> imported_file("ghcr.io/nvidia/jax:maxtext-2026-09-09", "/lustre/images")
    '/lustre/images/ghcr.io+nvidia+jax+maxtext-2026-09-09.sqsh'
    """
    image = image.removeprefix("docker://")
    if image.startswith(IMAGE_PATHS):
        return None
    return f"{folder.rstrip('/')}/{re.sub('[/:#@]', '+', image)}.sqsh"
