"""The SLURM target: submits the bundle's job.sbatch, whose supervisor keeps the run alive inside its allocation.

A handle is a job's number with its cluster, user and folder: any login node that reaches the controller finds the job by
it, for any user. Nothing asks accounting (sacct), so it works without.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue, Refused, Severity
from launcher.node.layout import RunFolder
from launcher.targets import slurm_queue as queue
from launcher.targets.base import NOW, Conditions, Handle, Options, Presence, Sight
from launcher.targets.secrets import unset_secrets
from launcher.targets.slurm_queue import Job, Unanswered
from launcher.targets.slurm_reasons import Phase, sentence, state

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.targets.slurm_submit import SbatchFailed

ARTEFACT = "job.sbatch"
"""What is submitted: this file of the bundle."""

_ASK_THERE = "ask on a login node of that cluster, or set SLURM_CONF"


def options(environ: Mapping[str, str]) -> Options:  # noqa: ARG001  every target has these arguments
    """Nothing: all that a later attempt needs is in the bundle."""
    return {}


def refusals(plan: Plan, options: Options, conditions: Conditions = NOW) -> list[Issue]:  # noqa: ARG001
    """What this login node lacks: SLURM's commands, submitit, secrets. What the cluster cannot give, the plan has told."""
    return [*lacking(), *unset_secrets(plan.experiment.env.secrets)]


def start(run: RunFolder, attempt: int, options: Options, conditions: Conditions = NOW) -> Handle:  # noqa: ARG001
    """Submit job.sbatch as it lies in the bundle, working there, with the attempt's number as its argument.

    Never beside another job of this run. Raises Refused: sbatch's words, or such a job; Unanswered: no controller.
    """
    issues = lacking(run)
    if issues:
        raise Refused(*issues)
    from launcher.targets.slurm_submit import SbatchFailed, Submission, submit

    folder = works_in(run)
    there = queue.jobs_in(folder)
    if there:
        raise Refused(still_there(run, there[-1]))
    script = folder / ARTEFACT
    words = [f"--chdir={folder}", *ordering(script, conditions)]
    submission = Submission(script, words, queue.foreign(os.environ), [str(attempt)])
    try:
        return handle_for(folder, submit(submission))
    except SbatchFailed as failed:
        if not queue.no_contact(failed.said):
            raise Refused(refused(failed)) from failed
        return arrived(run, failed)


def arrived(run: RunFolder, failed: SbatchFailed) -> Handle:
    """The job of a submission that got no answer, if it has reached the controller. Raises Unanswered."""
    late = find(run)
    if late is None:
        raise Unanswered(f"{failed.said}; nothing was submitted: try again") from failed
    return late


def find(run: RunFolder) -> Handle | None:
    """The newest job of this user that works in the run's bundle and is not over. Raises Unanswered."""
    folder = works_in(run)
    there = queue.jobs_in(folder)
    return handle_for(folder, there[-1].number) if there else None


def adopt(started: Mapping[str, Any], folder: str) -> Handle | None:
    """The job that the worker says it runs in."""
    job = started.get("job")
    if not job:
        return None
    return {
        "kind": "slurm",
        "job": str(job),
        "cluster": "",
        "user": "",
        "folder": str(works_in(RunFolder(Path(folder).parents[1]))),
    }


def look(handles: Sequence[Handle]) -> list[Sight]:
    """One squeue for all; one `scontrol show config` more when it does not know some of them."""
    numbers = {_number(handle) for handle in handles} - {""}
    try:
        known = queue.jobs(sorted(numbers))
        lost = [handle for handle in handles if _ours(handle, known) is None]
        site = queue.site() if lost else None
    except Unanswered as error:
        return [Sight(Presence.UNKNOWN, str(error))] * len(handles)
    return [_sight(job) if (job := _ours(handle, known)) else absent(handle, site, _user()) for handle in handles]


def stop(handle: Handle) -> None:
    """SIGUSR1 to the job's step, whose workers have MaxText save and end; a job that has not begun is cancelled."""
    job = _job(handle)
    if job is not None and state(job.state).phase is not Phase.OVER:
        queue.cancel(job.number, *([] if state(job.state).phase is Phase.WAITS else ["--signal=USR1"]))


def kill(handle: Handle) -> None:
    """scancel: SLURM ends all processes of the job, SIGTERM first and SIGKILL after its KillWait (30 s by default)."""
    job = _job(handle)
    if job is not None and state(job.state).phase is not Phase.OVER:
        queue.cancel(job.number)


def bring(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:  # noqa: ARG001
    """Nothing: the workers write into the run's folder themselves."""
    return []


def listen(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:  # noqa: ARG001
    """Nothing: its logs grow in the run's folder."""
    return []


def tidy(handle: Handle) -> list[str]:  # noqa: ARG001
    """Nothing: SLURM cleans up behind a job."""
    return []


def rehearse(plan: Plan, options: Options) -> list[str]:  # noqa: ARG001
    """sbatch --test-only: whether the controller would take the script, and when it expects to start it."""
    from launcher.render.bundle import render

    issues = lacking()
    if issues:
        raise Refused(*issues)
    taken, said = queue.test_only(render(plan).artefact)
    if not taken:
        raise Refused(
            _issue("SBATCH_REFUSED", "target.slurm", f"sbatch would refuse the job: {said}", "nothing was submitted")
        )
    return [said]


def follow(handle: Handle, after: Handle) -> str:
    """Add a dependency to a pending job; what its other dependencies are stays."""
    try:
        job = _job(handle)
        if job is None or state(job.state).phase is not Phase.WAITS:
            return (
                "it has begun already" if job is not None and state(job.state).phase is not Phase.OVER else "it is over"
            )
        if "?" in job.dependency:  # any of them is enough, and SLURM does not take both kinds
            return f"its own dependency is {job.dependency}"
        own = [re.sub(r"\(.*", "", part) for part in job.dependency.split(",") if part]
        queue.depend(job.number, ",".join([*own, f"afterany:{after['job']}"]))
    except Unanswered as error:
        return str(error)
    return ""


def _job(handle: Handle) -> Job | None:
    number = _number(handle)
    return _ours(handle, queue.jobs([number])) if number else None


def _number(handle: Handle) -> str:
    """The job's number; empty for a handle that is damaged: one wrong word would spoil the question for all."""
    number = str(handle.get("job", ""))
    return number if re.fullmatch(r"[0-9]+(_[0-9]+)?", number) else ""


def works_in(run: RunFolder) -> Path:
    """Where the run's jobs work: its bundle."""
    return run.path.resolve() / run.bundle.path.name


def handle_for(folder: Path, number: str) -> Handle:
    """The handle of the job with that number which works in the folder."""
    try:
        cluster = queue.site().cluster
    except Unanswered:
        cluster = ""  # the job is there all the same
    return {"kind": "slurm", "job": number, "cluster": cluster, "user": _user(), "folder": str(folder)}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # an id without an entry, as in many containers
        return str(os.getuid())


def _ours(handle: Handle, known: Mapping[str, Job]) -> Job | None:
    job = known.get(_number(handle))
    return job if job is not None and job.folder in (handle.get("folder"), handle.get("sweep")) else None


def _sight(job: Job) -> Sight:
    if state(job.state).phase is Phase.WAITS:
        return Sight(Presence.WAITING, sentence(job.number, job.reason, job.dependency, job.start))
    if state(job.state).phase is Phase.OVER:
        why = state(job.state).why or f"SLURM's state is {job.state}"
        return Sight(Presence.GONE, f"job {job.number} is over: {why}")
    return Sight(Presence.ALIVE, state(job.state).why, job.start)


def absent(handle: Handle, site: queue.Site | None, user: str) -> Sight:
    """A job that squeue does not know, or knows as another's: over and forgotten, unless it could be hidden from `user`."""
    if not _number(handle) or site is None:
        return Sight(Presence.UNKNOWN, "what was noted of its job is damaged")
    number, cluster, owner = handle["job"], handle.get("cluster"), handle.get("user")
    if cluster and site.cluster and cluster != site.cluster:
        why = f"job {number} is of the cluster {cluster}, this shell talks to {site.cluster}: {_ASK_THERE}"
        return Sight(Presence.UNKNOWN, why)
    if site.hides_jobs and owner and user not in (owner, "root"):
        return Sight(
            Presence.UNKNOWN, f"job {number} is {owner}'s, and this cluster hides jobs of others (PrivateData)"
        )
    return Sight(Presence.GONE, f"job {number} is over, and SLURM has forgotten how it ended")


def still_there(run: RunFolder, job: Job) -> Issue:
    """A job of the run that its start would be beside of."""
    message = f"job {job.number} of {run.name} is still there ({job.state.lower()}): two would write into the same checkpoints"
    return _issue("SLURM_JOB_THERE", "", message, f"wait for its end, or end it: scancel {job.number}")


def ordering(script: Path, conditions: Conditions) -> list[str]:
    """--dependency and --exclude. On the command line they replace the script's own lines, so those are joined in."""
    from launcher.targets.slurm_submit import lines

    after = [f"afterany:{conditions.after['job']}"] if conditions.after else []
    after += ["singleton"] if conditions.singleton else []
    words = []
    if after:
        own = lines(script, "dependency")
        words.append("--dependency=" + ",".join(([own] if own else []) + after))
    if conditions.exclude:
        own = lines(script, "exclude")
        words.append("--exclude=" + ",".join(([own] if own else []) + sorted(set(conditions.exclude))))
    return words


def refused(failed: SbatchFailed) -> Issue:
    """sbatch's own words, whole, and what was submitted."""
    hidden = [name for name in queue.foreign(os.environ) if name.startswith("SBATCH_")]
    hint = f"what was submitted: {shlex.join(failed.command)}"
    if hidden:
        hint += f" (without {', '.join(hidden)} of this shell: set target.slurm.* instead)"
    return _issue("SBATCH_REFUSED", "target.slurm", f"sbatch refused the job: {failed.said}", hint)


def lacking(*runs: RunFolder) -> list[Issue]:
    """What this machine lacks to submit at all, and the secrets of these runs that this shell does not have."""
    launches = [json.loads(run.bundle.launch.read_text(encoding="utf-8")) for run in runs]
    issues = unset_secrets(sorted({name for launch in launches for name in launch.get("secrets", [])}))
    lost = queue.missing()
    if lost:
        message = f"this machine has no {', '.join(lost)} on its PATH"
        hint = "submit on a login node of the cluster (often after `module load slurm`); `launcher doctor` says what it sees"
        issues.append(_issue("SLURM_MISSING", "target", message, hint))
    if find_spec("submitit") is None:
        message = "the Python that runs the launcher has no submitit"
        issues.append(_issue("SUBMITIT_MISSING", "target", message, "python3 -m pip install 'launcher[slurm]'"))
    return issues


def _issue(code: str, field: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, field, message, hint)
