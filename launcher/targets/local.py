"""The local target: a supervisor with the same worker as on a cluster, as a session of its own on this machine.

The supervisor outlives the shell and the launcher, and starts the attempts that follow. It is found again by host, boot, pid
and start time.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue, Refused, Severity
from launcher.node.codes import WorkerError
from launcher.node.ending import read_object
from launcher.node.environment import read_env
from launcher.node.launch import Launch, read_json, read_launch
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.targets import processes
from launcher.targets.base import NOW, Conditions, Handle, Options, Presence, Sight
from launcher.targets.secrets import unset_secrets

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

PYTHON = "LAUNCHER_PYTHON"
"""The variable that names the Python which trains; without it, the launcher's own."""
MARK = "LAUNCHER_ATTEMPT"
"""Set for the supervisor and so for all its children: its first attempt's folder. Left-overs are found by it."""
_ASK_SECONDS = 60  # bound for nvidia-smi and for a cold Python; both answer in well under a second


def options(environ: Mapping[str, str]) -> Options:
    """The Python that trains: $LAUNCHER_PYTHON, else the one that runs the launcher."""
    return {"python": os.path.abspath(shutil.which(environ.get(PYTHON, "")) or environ.get(PYTHON) or sys.executable)}


def refusals(plan: Plan, options: Options, conditions: Conditions = NOW) -> list[Issue]:
    """What this machine lacks for the plan: nodes, GPUs, secrets, a Python with the trainer."""
    experiment, mesh = plan.experiment, plan.mesh
    if mesh is None:
        return []  # the plan's own issues say why
    variables = {name: str(value) for name, value in {**experiment.env.vars, **experiment.fabric.vars}.items()}
    return [
        *_order_issues(conditions),
        *_size_issues(mesh.nodes, mesh.gpus_per_node, experiment.hardware.platform),
        *unset_secrets(experiment.env.secrets),
        *_python_issues(options["python"], experiment.trainer.module, variables),
    ]


def start(run: RunFolder, attempt: int, options: Options, conditions: Conditions = NOW) -> Handle:
    """Start the supervisor from the run's own bundle, with its words going to <run>/supervisor.log."""
    launch, secrets, variables = _read(run)
    issues = [
        *_order_issues(conditions),
        *_size_issues(launch.nodes, launch.processes_per_node, launch.platform),
        *unset_secrets(secrets),
        *_python_issues(options["python"], launch.module, variables),
    ]
    if issues:
        raise Refused(*issues)
    path = run.path.resolve()
    folder = RunFolder(path).attempt(attempt)
    # -B: no __pycache__ inside the bundle, which is sealed by its manifest.
    command = [
        options["python"],
        "-B",
        str(RunFolder(path).bundle.supervisor),
        "--bundle",
        str(path / run.bundle.path.name),
    ]
    command += ["--run", str(path), "--attempt", str(attempt), "--here", options["python"]]
    with open(RunFolder(path).supervisor_log, "ab") as log:
        supervisor = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=path,
            env={**os.environ, MARK: str(folder.path)},
            start_new_session=True,
        )
    return {
        "kind": "local",
        "host": socket.gethostname(),
        "boot": processes.boot_id(),
        "pid": supervisor.pid,
        "process_start": processes.start_ticks(supervisor.pid),
        "attempt_folder": str(folder.path),
    }


def look(handles: Sequence[Handle]) -> list[Sight]:
    """Alive when that very process still is; unknown for one that was started on another host."""
    return [_look(handle) for handle in handles]


def stop(handle: Handle) -> None:
    """SIGTERM to the supervisor, whose worker has MaxText save and end."""
    if _is_here(handle) and handle["process_start"] is not None:
        processes.send(handle["pid"], handle["process_start"], signal.SIGTERM)


def kill(handle: Handle) -> None:
    """SIGKILL to the supervisor and to everything that it started."""
    if not _is_here(handle):
        return
    if handle["process_start"] is not None:
        processes.send(handle["pid"], handle["process_start"], signal.SIGKILL)
    for pid, started in processes.marked(MARK, handle["attempt_folder"]):
        processes.send(pid, started, signal.SIGKILL)


def adopt(started: Mapping[str, Any], folder: str) -> Handle | None:
    """The supervisor as it noted itself, else the worker, by attempt.json, of an attempt started by hand. Its boot is not known."""
    noted = read_object(AttemptFolder(Path(folder)).supervisor) or started
    facts = {key: noted.get(key) for key in ("host", "pid", "process_start")}
    return {"kind": "local", **facts, "boot": None, "attempt_folder": noted.get("attempt_folder", folder)}


def find(run: RunFolder) -> Handle | None:  # noqa: ARG001  every target has these arguments
    """None: a supervisor is started at once, and notes itself in the attempt's folder."""
    return None


def bring(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:  # noqa: ARG001
    """Nothing: worker and supervisor write into the run's folder themselves."""
    return []


def listen(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:  # noqa: ARG001
    """Nothing: its logs grow in the run's folder."""
    return []


def tidy(handle: Handle) -> list[str]:  # noqa: ARG001
    """Nothing is left but processes, and `kill` finds those."""
    return []


def rehearse(plan: Plan, options: Options) -> list[str]:  # noqa: ARG001
    """There is no server to ask."""
    hint = "`plan` and `preflight` say what would be wrong"
    raise Refused(
        _error("DRY_RUN", "target", "this machine has no server that could be asked: --dry-run is a cluster's", hint)
    )


def _is_here(handle: Handle) -> bool:
    return bool(handle["host"] == socket.gethostname() and handle["boot"] in (None, processes.boot_id()))


def _look(handle: Handle) -> Sight:
    here = socket.gethostname()
    if not {"host", "boot", "pid", "process_start"} <= handle.keys():
        return Sight(Presence.UNKNOWN, "what was noted of its process is damaged")
    if handle["host"] != here:
        return Sight(Presence.UNKNOWN, f"it was started on {handle['host']}, this is {here}: ask there")
    alive = _is_here(handle) and processes.start_ticks(handle["pid"]) == handle["process_start"] is not None
    return Sight(Presence.ALIVE if alive else Presence.GONE)


def _read(run: RunFolder) -> tuple[Launch, list[str], dict[str, str]]:
    try:
        launch = read_launch(run.bundle.launch)
        secrets = read_json(run.bundle.launch).get("secrets", [])
        return launch, secrets, read_env(run.bundle.env)
    except WorkerError as error:
        raise Refused(Issue("BUNDLE_UNREADABLE", Severity.ERROR, "bundle", str(error))) from error


def _error(code: str, field: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, field, message, hint)


def _order_issues(conditions: Conditions) -> list[Issue]:
    if conditions.after is None and not conditions.singleton:
        return []
    message = "this machine has no queue: --after and --singleton order jobs of a cluster"
    return [_error("LOCAL_ORDER", "target", message, "leave them out, or choose a cluster: target=slurm")]


def _size_issues(nodes: int, processes_per_node: int, platform: str) -> list[Issue]:
    issues = []
    if not (processes.PROC / "self" / "stat").exists():
        issues.append(
            _error(
                "LOCAL_SYSTEM",
                "target",
                "target=local needs Linux: it finds a run again in /proc",
                "submit from a Linux machine",
            )
        )
    if nodes > 1:
        message = f"target=local is this one machine, the experiment wants {nodes} nodes"
        issues.append(_error("LOCAL_NODES", "target", message, "choose a mesh of one node, or another target"))
    elif platform == "gpu":
        found = _gpus()
        if found < processes_per_node:
            message = f"{processes_per_node} GPU(s) wanted on this machine, nvidia-smi -L lists {found}"
            issues.append(_error("LOCAL_GPUS", "hardware", message, "a smaller mesh, hardware=cpu, or another target"))
    return issues


def _gpus() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def _python_issues(python: str, module: str, variables: Mapping[str, str]) -> list[Issue]:
    """Whether that Python finds the trainer's package; looked up, not imported (MaxText's import takes 5 s)."""
    package = module.partition(".")[0]
    code = "import importlib.util, sys; print(sys.version_info[:2] >= (3, 12), importlib.util.find_spec(sys.argv[1]) is not None)"
    try:
        answer = subprocess.run(
            [python, "-c", code, package],
            env={**os.environ, **variables},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [_error("LOCAL_PYTHON", "target", f"cannot run {python}: {error}", f"export {PYTHON}=/path/to/python3")]
    if answer.returncode != 0:
        said = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        return [
            _error(
                "LOCAL_PYTHON",
                "target",
                f"{python} ends with {answer.returncode}: {said}",
                f"export {PYTHON}=/path/to/python3",
            )
        ]
    new_enough, found = answer.stdout.split()
    if found == "True":
        return []
    message = f"{python} has no module {package}" + ("" if new_enough == "True" else ", and is older than Python 3.12")
    if package == "maxtext":
        hint = f"with Python >= 3.12: pip install 'launcher[local]'; if it is another Python: export {PYTHON}=/path/to/python3"
    else:
        hint = f"install it there, or add +env.vars.PYTHONPATH=/folder/of/{package}"
    return [_error("TRAINER_MISSING", "trainer.module", message, hint)]
