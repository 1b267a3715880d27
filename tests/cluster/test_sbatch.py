"""job.sbatch before a real SLURM: every shipped experiment is accepted and placed as its mesh wants, values arrive unchanged,
and what sbatch refuses is refused by `plan` before."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from awkward import VALUES

from launcher.config.compose import Composer
from launcher.config.groups import options
from launcher.config.schema import Experiment
from launcher.plan.plan import Plan, make
from launcher.plan.slurm import placement
from launcher.plan.slurm_names import known
from launcher.render.bundle import render, write
from launcher.render.slurm import script
from slurm.testbed.cluster import Cluster

COMPOSER = Composer()
RACK = 18
ON_RACKS = 36
TOOL = Path(__file__).resolve().parents[2] / "tools" / "slurm_options.py"
NODE_TESTS = Path(__file__).resolve().parent.parent / "node"
S, X = "target.slurm", "target.slurm.sbatch"


def plan_of(*words: str) -> Plan:
    composed = COMPOSER.compose(words)
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


MULTI_NODE = [name for name in options("exp") if (plan_of(f"+exp={name}").experiment.nodes or 1) > 1]


def asked(cluster: Cluster, folder: Path, plan: Plan, *words: str) -> str:
    """What `sbatch --test-only` says of the bundle as a person would submit it; it raises when sbatch refuses."""
    write(render(plan), folder)
    return cluster.run("sbatch", "--test-only", *words, "job.sbatch", cwd=folder).stderr


def racks_of(cluster: Cluster, told: str) -> Counter[int]:
    """Nodes in each rack, of the list that sbatch answers with."""
    nodelist = re.search(r" on nodes (\S+) in partition", told)
    assert nodelist, told
    names = cluster.run("scontrol", "show", "hostnames", nodelist[1]).stdout.split()
    return Counter(int(re.sub(r"\D", "", name)) // RACK for name in names)


def test_the_list_of_options_is_what_slurm_itself_says(racks: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in racks.environment().items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("slurm_options", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for program in ("sbatch", "srun"):
        listed = {name: kind for name, kind in known(program).items() if name not in tool.PYXIS}
        assert set(tool.names(program)) - set(tool.PYXIS) == set(listed)
        for name in ("account", "exclusive", "hold", "segment"):
            assert tool.kind(program, name) == listed[name]


def test_there_are_experiments_to_ask_about() -> None:
    assert {"dsv3_128gpu", "dsv3_1024gpu", "kimi_k2_1t_256gpu", "mixtral_8x7b_16gpu"} <= set(MULTI_NODE)


@pytest.mark.parametrize("name", MULTI_NODE)
def test_sbatch_accepts_every_multi_node_experiment_and_fills_whole_domains(
    name: str, racks: Cluster, tmp_path: Path
) -> None:
    plan = plan_of(f"+exp={name}")
    assert plan.mesh is not None
    assert plan.experiment.target.kind == "slurm"
    if plan.mesh.nodes > ON_RACKS:
        plan = plan_of(f"+exp={name}", f"{S}.partition=cloud")
    placed = racks_of(racks, asked(racks, tmp_path / "b", plan))
    assert plan.mesh is not None
    assert sum(placed.values()) == plan.mesh.nodes
    share = plan.mesh.nodes_per_domain
    assert {count % share for count in placed.values()} == {0}, placed
    if share > RACK // 2:
        assert set(placed.values()) == {share}


def test_1024_gpus_are_placed_in_16_racks_of_16(racks: Cluster, tmp_path: Path) -> None:
    told = asked(racks, tmp_path / "b", plan_of("+exp=dsv3_1024gpu", f"{S}.partition=cloud"))
    assert sorted(racks_of(racks, told).values()) == [16] * 16
    assert "using 2048 processors" in told  # whole nodes


@pytest.mark.parametrize(
    ("words", "partition", "counts"),
    [
        # 36 nodes as three domains of 12 must not become two of 18: on two racks there is no room for them.
        (
            "nodes=36 mesh.ici.data=3 mesh.ici.fsdp=2 mesh.dcn.data=3 mesh.dcn.fsdp=1 trainer.workarounds=[te_data_axis]",
            "main",
            None,
        ),
        (
            "nodes=36 mesh.ici.data=3 mesh.ici.fsdp=2 mesh.dcn.data=3 mesh.dcn.fsdp=1 trainer.workarounds=[te_data_axis]",
            "cloud",
            [12, 12, 12],
        ),
        ("nodes=32 mesh.ici.fsdp=2 mesh.dcn.fsdp=8", "main", [16, 16]),
        (f"{S}.spare_nodes=2", "main", [17, 17]),
        (f"{S}.spare_nodes=4", "main", [18, 18]),
        (f"{S}.spare_nodes=16", "main", None),
        (f"{S}.spare_nodes=16", "cloud", [16, 16, 16]),
        (f"{S}.gpus=gres +{X}.nice=5 {S}.cpus_per_node=8 {S}.mpi=pmix", "main", [16, 16]),
        (f"{S}.exclusive=false +{X}.mem=3000 {S}.gpus=none +{X}.gpus-per-node=gb200:4", "main", [16, 16]),
    ],
)
def test_other_shapes_are_placed_as_the_plan_says(
    words: str, partition: str, counts: list[int] | None, racks: Cluster, tmp_path: Path
) -> None:
    plan = plan_of("+exp=dsv3_128gpu", *words.split(), f"{S}.partition={partition}")
    assert plan.errors == ()
    assert plan.mesh is not None
    if counts is None:
        write(render(plan), tmp_path / "b")
        done = racks.run("sbatch", "--test-only", "job.sbatch", cwd=tmp_path / "b", check=False)
        assert "Requested node configuration is not available" in done.stderr
        return
    assert sorted(racks_of(racks, asked(racks, tmp_path / "b", plan)).values()) == counts
    placed = placement(plan.experiment, plan.mesh)
    assert placed is not None
    assert placed.nodes == sum(counts)


REFUSED = [
    f"+{X}.mail-tipe=END",
    f"+{X}.mail_type=END",
    f"+{X}.smt=on",
    f"+{X}.hold=yes",
    f"+{X}.comment=true",
    f"+{X}.array=x",
    f"+{X}.wrap=true",
    f"+{X}.mem=1G +{X}.mem-per-cpu=1G",
    f"{S}.signal_seconds=65536 {S}.time_minutes=9999",
    f"{S}.signal_seconds=-1",
    f"{S}.partition=''",
    f"{S}.partition='a b'",
    f"{S}.nodelist='n[0-3'",
    f"{S}.cpus_per_node=0",
    f"{S}.gpus=gpu",
]


@pytest.mark.parametrize("words", REFUSED)
def test_what_sbatch_refuses_is_said_before(words: str, racks: Cluster, tmp_path: Path) -> None:
    plan = plan_of("+exp=dsv3_128gpu", *re.findall(r"(?:[^\s']|'[^']*')+", words))
    assert plan.mesh is not None
    before = {issue.code for issue in plan_of("+exp=dsv3_128gpu").issues}
    assert [i for i in plan.issues if i.code not in before and i.code.startswith("SLURM_")]
    (tmp_path / "job.sbatch").write_text(script(plan.experiment, plan.mesh))
    done = racks.run("sbatch", "--test-only", "job.sbatch", cwd=tmp_path, check=False)
    assert done.returncode != 0, done.stderr


def test_dos_lines_and_unknown_words_for_srun_are_refused_too(racks: Cluster, tmp_path: Path) -> None:
    plan = plan_of("+exp=dsv3_128gpu", "+target.slurm.srun.cpu-bnd=none")
    assert "SLURM_OPTION_UNKNOWN" in [issue.code for issue in plan.errors]
    assert "unrecognized option" in racks.run("srun", "--cpu-bnd=none", "-N1", "true", check=False).stderr
    dos = copy.deepcopy(plan_of("+exp=dsv3_128gpu").experiment)
    dos.target.slurm.setup = ["true\r"]
    assert "SLURM_SETUP" in [issue.code for issue in make(dos).errors]
    assert plan.mesh is not None
    (tmp_path / "job.sbatch").write_text(script(dos, plan.mesh), newline="")
    assert "DOS line breaks" in racks.run("sbatch", "--test-only", "job.sbatch", cwd=tmp_path, check=False).stderr


COMMENTS = [
    "plain", "a b  c", "ghcr.io#nvidia/jax", "#", "it's", 'say "no"', "'single'", r"back\slash \n \" \\", "$HOME ${PATH} `id`",
    "a,b=c:d;e|f&g", "-dash", "~ * ? [x] {y}", "caf\u00e9 \u4e2d", "%j %x", " ends in a backslash\\",
]  # fmt: skip


@pytest.mark.parametrize("value", COMMENTS)
def test_any_value_of_an_option_reaches_slurm_unchanged(value: str, each_cluster: Cluster, tmp_path: Path) -> None:
    wanted = copy.deepcopy(plan_of("+exp=moe_tiny_cpu", "target=slurm").experiment)
    wanted.target.slurm.sbatch = {"comment": value, "hold": True}
    plan = make(wanted)
    assert plan.errors == ()
    write(render(plan), tmp_path / "b")
    job = each_cluster.submit("job.sbatch", cwd=tmp_path / "b")
    shown = each_cluster.run("scontrol", "show", "job", job).stdout
    each_cluster.run("scancel", job)
    found = re.search(r"^   Comment=(.*)$", shown, re.M)
    assert found, shown
    assert found[1].rstrip() == value.rstrip()
    assert "JobName=moe_tiny_cpu" in shown
    assert "TimeLimit=04:00:00" in shown
    assert f"StdOut={tmp_path}/b/../slurm-{job}.log" in shown


SECRETS = {f"SECRET_{name}": value for name, value in VALUES.items() if name != "EMPTY"}
IMAGE, IMAGE_FILE = "ghcr.io/nvidia/jax:maxtext", "ghcr.io_nvidia_jax_maxtext"


def standin(cluster: Cluster, image: str | None) -> Experiment:
    """Two nodes of two processes that print their environment instead of training."""
    words = [
        "target=slurm",
        "nodes=2",
        "hardware.domain_nodes=2",
        "mesh.ici.fsdp=2",
        "trainer.module=standin_trainer",
        "trainer.steps=2",
    ]
    words += [] if cluster.settings.blocks else [f"{S}.segment=false"]
    wanted = copy.deepcopy(plan_of("+exp=moe_tiny_cpu", *words).experiment)
    wanted.env.vars = {**VALUES, "PYTHONPATH": str(NODE_TESTS)}
    wanted.env.secrets = sorted(SECRETS)
    wanted.container.image = image
    wanted.container.workdir = "/tmp" if image else None
    return wanted


@pytest.mark.parametrize("image", [IMAGE, None], ids=["in the container", "on the host"])
def test_values_reach_every_trainer_process_unchanged(image: str | None, each_cluster: Cluster) -> None:
    """A bundle by hand: cd there, sbatch job.sbatch. Real srun, supervisor and worker; the stand-in pyxis."""
    image_says = "".join(f"{name}=the image's\n" for name in [*VALUES, *SECRETS, "OWN"])
    (each_cluster.folder / "images" / IMAGE_FILE).write_text(image_says)
    bundle = each_cluster.folder / "shared" / f"quoting {'inside' if image else 'outside'}" / "bundle"
    plan = make(standin(each_cluster, image))
    assert plan.errors == ()
    write(render(plan), bundle)
    run = bundle.with_name("bundle.run")
    run.mkdir()
    names = [*VALUES, *SECRETS, "OWN"]
    (run / "adjust.json").write_text(
        json.dumps({"maxtext": {"steps": 2, "mode": "show", "names": ",".join(names), "together": 2}})
    )
    path = f"{Path(sys.executable).parent}:{each_cluster.environment()['PATH']}"
    job = each_cluster.submit("job.sbatch", cwd=bundle, env={**SECRETS, "PATH": path})
    state = each_cluster.wait_job(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=120)
    told = "\n".join(
        p.read_text(errors="replace")[-2000:] for p in [*bundle.parent.glob("slurm-*.log"), *run.glob("attempts/1/*")]
    )
    assert state == "COMPLETED", told
    for rank in range(4):
        log = (run / "attempts" / "1" / f"rank{rank}.log").read_text(encoding="utf-8")
        seen = json.loads(log.partition("SHOW ")[2].splitlines()[0])
        assert {name: seen[name] for name in VALUES} == VALUES
        assert {name: seen[name] for name in SECRETS} == SECRETS
        assert seen["OWN"] == ("the image's" if image else None)
    texts = [p.read_text(errors="replace") for p in bundle.rglob("*") if p.is_file()]
    assert not [text for text in texts if "SECRET_COMMAS=" in text], "names only"
