"""Several runs of one shape as one job array: each task does what the run's own job.sbatch would do as a job of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.issue import Refused
from launcher.node.layout import RunFolder
from launcher.render import slurm_array
from launcher.render.folder import Bundle
from launcher.targets import slurm, sweep
from launcher.targets import slurm_queue as queue
from launcher.targets.base import Conditions, Handle


def shape(bundle: Bundle) -> object:
    """What runs of one array have in common."""
    return slurm_array.shape(bundle.artefact)


def most() -> int:
    """Tasks that one array may have here; 1 where SLURM is not at all, so that each run says what is missing. Raises Unanswered."""
    if queue.missing():
        return 1
    return queue.site().largest_array


def start(
    root: Path, runs: Sequence[RunFolder], conditions: Conditions, at_once: int | None
) -> tuple[Path, list[Handle]]:
    """Write the array's text into the folder of runs and submit it: the first attempt of each run. The text and the handles.

    Raises as launcher.targets.slurm.start does, and then no run of them was submitted.
    """
    issues = slurm.lacking(*runs)
    if issues:
        raise Refused(*issues)
    from launcher.targets.slurm_submit import SbatchFailed, Submission, submit_array

    folders = [slurm.works_in(run) for run in runs]
    there = queue.jobs_of_user()
    issues = [
        slurm.still_there(run, job)
        for run, at in zip(runs, folders, strict=True)
        for job in there
        if job.folder == str(at)
    ]
    if issues:
        raise Refused(*issues)
    scripts = {
        run.name: (at / slurm.ARTEFACT).read_text(encoding="utf-8") for run, at in zip(runs, folders, strict=True)
    }
    text = slurm_array.array(scripts, at_once)
    folder = sweep.folder_of(root, slurm_array.sweep_name(text))
    script = sweep.write(folder, text, list(scripts))
    words = [f"--chdir={folder}", *slurm.ordering(script, conditions)]
    try:
        numbers = submit_array(Submission(script, words, queue.foreign(os.environ), []), folders)
        handles = [slurm.handle_for(at, number) for at, number in zip(folders, numbers, strict=True)]
    except SbatchFailed as failed:
        if not queue.no_contact(failed.said):
            raise Refused(slurm.refused(failed)) from failed
        handles = [slurm.arrived(run, failed) for run in runs]
    return script, [{**handle, "sweep": str(folder)} for handle in handles]
