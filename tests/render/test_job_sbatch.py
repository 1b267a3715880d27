"""job.sbatch as a text. What SLURM makes of it: tests/cluster/test_sbatch.py."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher.config.compose import Composer
from launcher.config.groups import options, search_path
from launcher.config.schema import Experiment
from launcher.plan.plan import make
from launcher.plan.slurm import pyxis_image
from launcher.render.bundle import render, write
from launcher.render.slurm import quoted, script

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('SEEN'), sys.dont_write_bytecode]))\n"


def text_of(experiment: Experiment) -> str:
    mesh = make(experiment).mesh
    assert mesh is not None
    return script(experiment, mesh)


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH --(.*)$", text, re.M)


def place(folder: Path, text: str) -> Path:
    """A bundle's folder with a supervisor that says how it was called."""
    (folder / "node").mkdir(parents=True)
    (folder / "job.sbatch").write_text(text)
    (folder / "launch.json").write_text("{}")
    (folder / "node" / "supervisor.py").write_text(SHOW)
    return folder


def start(file: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As slurmd does: bash with a copy of the script, from elsewhere, in the job's folder."""
    return subprocess.run(
        ["bash", str(file), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PWD": str(cwd)},
    )


def test_the_articles_job_asks_for_what_an_expert_would(plan_of) -> None:
    assert directives(text_of(plan_of("+exp=dsv3_128gpu").experiment)) == [
        "job-name=dsv3_128gpu", "nodes=32", "ntasks-per-node=1", "segment=16", "gpus-per-node=4", "exclusive", "mem=0",
        "time=04:00:00", "signal=USR1@720", "requeue", "output=../slurm-%j.log", "open-mode=append",
    ]  # fmt: skip


def test_every_setting_has_its_option(plan_of) -> None:
    words = [
        "account=moe", "partition=gb200", "qos=high", "reservation=r1", "constraint=nvl", "exclude=n7", "time_minutes=2885",
        "signal_seconds=900", "gpus=gres", "cpus_per_node=72", "exclusive=false", "segment=false", "requeue=false", "spare_nodes=3",
    ]  # fmt: skip
    plan = plan_of(
        "+exp=dsv3_128gpu",
        *(f"target.slurm.{word}" for word in words),
        "+target.slurm.sbatch.nice=100",
        "+target.slurm.sbatch.hold=true",
        "+target.slurm.sbatch.mem=900G",
        "+target.slurm.sbatch.comment=null",
    )
    assert plan.errors == ()
    assert directives(text_of(plan.experiment)) == [
        "job-name=dsv3_128gpu", "account=moe", "partition=gb200", "qos=high", "reservation=r1", "constraint=nvl", "exclude=n7",
        "nodes=35", "ntasks-per-node=1", "gres=gpu:4", "cpus-per-task=72", "time=2-00:05:00", "signal=USR1@900", "no-requeue",
        "output=../slurm-%j.log", "open-mode=append", "hold", "mem=900G", "nice=100",
    ]  # fmt: skip


@pytest.mark.parametrize("name", options("exp"))
def test_every_experiment_has_a_script_that_bash_reads_and_no_path_is_absolute(name: str, plan_of) -> None:
    text = text_of(plan_of(f"+exp={name}", "target=slurm").experiment)
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""
    lines = text.splitlines()
    first_code = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    last_option = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_option < first_code, "sbatch stops looking at the first line of code"
    assert not [line for line in lines[1:] if re.search(r"[ \"'=]/[a-z]", line)]
    assert max(map(len, lines)) <= 132


def test_a_run_without_checkpoints_is_promised_none(plan_of) -> None:
    without, saved = (text_of(plan_of("+exp=dsv3_128gpu", *more).experiment) for more in ([], ["checkpoint=periodic"]))
    assert "step 0" in without
    assert "checkpoint written" not in without
    assert "checkpoint written" in saved


def test_it_starts_the_supervisor_beside_it_and_finds_the_run(plan_of, tmp_path: Path) -> None:
    text = text_of(plan_of("+exp=dsv3_128gpu").experiment)
    alone = place(tmp_path / "a bundle", text)
    spool = tmp_path / "slurm_script"
    spool.write_text(text)
    argv, _, no_bytecode = json.loads(start(spool, cwd=alone).stdout)
    assert argv == ["--bundle", str(alone), "--run", f"{alone}.run", "--attempt", "1"]
    assert no_bytecode
    inside = place(tmp_path / "x-0123" / "bundle", text)
    (inside.parent / "run.json").write_text("{}")
    argv, _, _ = json.loads(start(spool, "7", cwd=inside).stdout)
    assert argv == ["--bundle", str(inside), "--run", str(inside.parent), "--attempt", "7"]
    lost = start(spool, cwd=tmp_path)
    assert (lost.returncode, lost.stdout) == (78, "")
    assert "sbatch job.sbatch" in lost.stderr


def test_setup_lines_run_first_as_they_stand(plan_of, tmp_path: Path) -> None:
    asked = copy.deepcopy(plan_of("+exp=dsv3_128gpu").experiment)
    asked.target.slurm.setup = [
        "export SEEN='a  \"b\" #c $HOME'",
        "cd /",
        "#SBATCH --nodes=1",
        "if true; then\n  :\nfi",
    ]
    folder = place(tmp_path / "b", text_of(asked))
    argv, seen, _ = json.loads(start(folder / "job.sbatch", cwd=folder).stdout)
    assert argv[1] == str(folder)
    assert seen == 'a  "b" #c $HOME'
    assert (
        directives((folder / "job.sbatch").read_text())[-1] == "nodes=1"
    )  # a comment for sbatch: code stands before it


@pytest.mark.parametrize("value", ["a\nb", "a\r", "\0"])
def test_a_value_of_two_lines_is_no_directive(value: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        quoted(value)


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("ghcr.io/nvidia/jax:maxtext", "ghcr.io#nvidia/jax:maxtext"),
        ("docker://nvcr.io/nvidia/jax:26.04-py3", "nvcr.io#nvidia/jax:26.04-py3"),
        ("$oauthtoken@nvcr.io/nvidia/jax", "$oauthtoken@nvcr.io#nvidia/jax"),
        ("localhost/x", "localhost#x"),
        ("registry:5000/team/x:1", "registry:5000#team/x:1"),
        ("ghcr.io#nvidia/jax", "ghcr.io#nvidia/jax"),
        ("nvidia/cuda:13.0", "nvidia/cuda:13.0"),
        ("ubuntu:24.04", "ubuntu:24.04"),
        ("/images/jax.sqsh", "/images/jax.sqsh"),
        ("./jax.sqsh", "./jax.sqsh"),
        ("dockerd://jax:mine", "dockerd://jax:mine"),
    ],
)
def test_an_image_is_named_as_pyxis_names_it(image: str, wanted: str) -> None:
    assert pyxis_image(image) == wanted


def launch_of(plan) -> dict[str, object]:
    return dict(json.loads(render(plan).files["launch.json"]))


def test_launch_json_tells_the_supervisor_what_sruns_steps_need(plan_of) -> None:
    more = [
        "env.secrets=[HF_TOKEN]", "+env.vars.A=1", "container.mounts=[/lustre:/lustre]", "container.workdir=/lustre",
        "target.slurm.mpi=pmix", "target.slurm.cpus_per_node=72", "+target.slurm.srun.label=true", "+target.slurm.srun.comment=a b",
        "monitor.max_failures=1", "monitor.restart_pause_seconds=5",
    ]  # fmt: skip
    told = launch_of(plan_of("+exp=dsv3_1024gpu", "xla=stock", *more))
    assert told["srun"] == [
        "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=60", "--mpi=pmix", "--cpus-per-task=72", "--cpu-bind=none",
        "--comment=a b", "--label",
    ]  # fmt: skip
    names = [
        "A",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "HF_TOKEN",
        "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB",
        "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ]
    image = "ghcr.io#nvidia/jax:maxtext-2026-09-09"
    mounts = ["/lustre:/lustre"]
    assert told["container"] == {"image": image, "file": None, "mounts": mounts, "workdir": "/lustre", "env": names}
    assert told["restarts"] == {
        "failures": 1,
        "preemptions": 1000,
        "bad_nodes": 5,
        "rollbacks": 2,
        "kinds": {},
        "pause_seconds": 5,
    }
    assert (told["nodes_per_domain"], told["expert_nodes"], told["numa"]) == (16, 2, 2)
    assert told["signal_seconds"] == 720


def test_only_the_slurm_target_has_srun_and_container(plan_of) -> None:
    told = launch_of(plan_of("+exp=dsv3_128gpu", "target=local"))
    assert (told["srun"], told["container"], told["nodes_per_domain"]) == ([], None, 16)
    assert launch_of(plan_of("+exp=dsv3_128gpu", "container=none"))["container"] is None
    assert "--cpu-bind=none" not in launch_of(plan_of("+exp=dsv3_128gpu", "+target.slurm.srun.cpu-bind=cores"))["srun"]


@pytest.mark.parametrize(
    ("own", "mounts"),
    [
        ("defaults: [slurm]\nslurm: {account: moe, time_minutes: 480}\n", []),
        (
            "# @package _global_\ndefaults: [slurm@target]\ntarget: {slurm: {account: moe, time_minutes: 480}}\n"
            "container: {mounts: ['/lustre:/lustre']}\n",
            ["/lustre:/lustre"],
        ),
    ],
)
def test_a_users_own_cluster_file_needs_only_what_differs(own: str, mounts: list[str], tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mycluster.yaml").write_text(own)
    composed = Composer(search_path([tmp_path])).compose(["+exp=dsv3_128gpu", "target=mycluster"])
    assert composed.experiment is not None, composed.issues
    asked = set(directives(text_of(composed.experiment)))
    assert {"account=moe", "time=08:00:00", "signal=USR1@720", "segment=16"} <= asked
    assert composed.experiment.container.mounts == mounts


def test_the_script_in_a_folder_is_the_one_that_is_shown(plan_of, tmp_path: Path) -> None:
    bundle = render(plan_of("+exp=dsv3_128gpu"))
    write(bundle, tmp_path / "b")
    assert (tmp_path / "b" / "job.sbatch").read_text() == bundle.artefact
