"""What sbatch, srun or pyxis would refuse is an issue before, and typing its hint cures it. tests/cluster/test_sbatch.py asks SLURM itself."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistakes import assert_its_hint_cures

import launcher.plan
from launcher.config.compose import Composer
from launcher.issue import Severity
from launcher.plan.plan import Plan, make
from launcher.plan.slurm import placement, racks
from launcher.plan.slurm_names import FIXED, HOMES, PROGRAMS, known

COMPOSER = Composer()
DSV3, TINY, FITS = "dsv3_128gpu", "moe_tiny_cpu", "dsv3_128gpu_fits checkpoint=periodic"
E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE
S, X, R = "target.slurm", "target.slurm.sbatch", "target.slurm.srun"


def plan(experiment: str, *words: str) -> Plan:
    exp, *more = experiment.split()
    composed = COMPOSER.compose([f"+exp={exp}", *more, *words])
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


class Row(NamedTuple):
    overrides: str
    code: str
    field: str
    typed: str
    severity: Severity = E
    message: str = ""
    experiment: str = FITS


ROWS = [
    # nodes
    Row(f"{S}.spare_nodes=-1", "SLURM_SPARE_NODES", f"{S}.spare_nodes", f"{S}.spare_nodes=0"),
    Row(f"{S}.spare_nodes=1", "SLURM_SPARE_NODES", f"{S}.spare_nodes", f"{S}.spare_nodes=16", message="do not split over 2 domains of 16"),
    Row(f"{S}.spare_nodes=3", "SLURM_SPARE_NODES", f"{S}.spare_nodes", f"{S}.spare_nodes=2"),
    Row(f"{S}.spare_nodes=6", "SLURM_SPARE_NODES", f"{S}.spare_nodes", f"{S}.spare_nodes=4", message="18 nodes at most"),
    Row(f"{S}.segment=false", "SLURM_SEGMENT_OFF", f"{S}.segment", f"{S}.segment=true", W),
    # the clock
    Row(f"{S}.time_minutes=0", "SLURM_TIME", f"{S}.time_minutes", f"{S}.time_minutes=240", message="0 for no limit"),
    Row(f"{S}.time_minutes=13", "SLURM_TIME", f"{S}.time_minutes", f"{S}.time_minutes=14", message="as soon as it starts"),
    Row(f"{S}.signal_seconds=0", "SLURM_SIGNAL", f"{S}.signal_seconds", f"{S}.signal_seconds=720"),
    Row(f"{S}.signal_seconds=65536 {S}.time_minutes=9999", "SLURM_SIGNAL", f"{S}.signal_seconds", f"{S}.signal_seconds=720"),
    Row(f"{S}.signal_seconds=300", "SLURM_SIGNAL_SHORT", f"{S}.signal_seconds", f"{S}.signal_seconds=660", W, "SLURM signals 300 s before"),
    Row(f"{S}.signal_seconds=300", "SLURM_SIGNAL_SHORT", f"{S}.signal_seconds", "trainer.stop_grace_seconds=240", W),
    # words and names
    Row(f"{S}.gpus=gpu-per-node", "SLURM_GPUS", f"{S}.gpus", f"{S}.gpus=gpus-per-node", message="gpus-per-node, gres, none"),
    Row(f"{S}.gpus=gpus-per-task", "SLURM_GPUS", f"{S}.gpus", f"{S}.gpus=gpus-per-node"),
    Row(f"{S}.cpus_per_node=0", "SLURM_CPUS", f"{S}.cpus_per_node", f"{S}.cpus_per_node=null"),
    Row(f"{S}.partition=''", "SLURM_NAME", f"{S}.partition", f"{S}.partition=null"),
    Row(f"{S}.partition=a@b", "SLURM_NAME", f"{S}.partition", f"{S}.partition=null"),
    Row(f"{S}.nodelist='n[0-3'", "SLURM_NAME", f"{S}.nodelist", f"{S}.nodelist=null", message="n[0-3],n7"),
    Row(f"{S}.exclude='n1;n2'", "SLURM_NAME", f"{S}.exclude", f"{S}.exclude=null"),
    Row(f"{S}.account='a#b'", "SLURM_NAME", f"{S}.account", f"{S}.account=null"),
    Row(f"{S}.mpi=''", "SLURM_NAME", f"{S}.mpi", f"{S}.mpi=none"),
    # further options
    Row(f"+{X}.mail-typ=END", "SLURM_OPTION_UNKNOWN", f"{X}.mail-typ", f"~{X}.mail-typ", message="sbatch 24.11.5 has no option --mail-typ"),
    Row(f"+{X}.mail_type=END", "SLURM_OPTION_UNKNOWN", f"{X}.mail_type", f"~{X}.mail_type"),
    Row(f"+{X}.part=x", "SLURM_OPTION_UNKNOWN", f"{X}.part", f"~{X}.part"),
    Row(f"+{X}.smt=on", "SLURM_OPTION_UNKNOWN", f"{X}.smt", f"~{X}.smt", W, "newer or has it from a plugin"),
    Row(f"+{R}.cpu-bnd=none", "SLURM_OPTION_UNKNOWN", f"{R}.cpu-bnd", f"~{R}.cpu-bnd"),
    Row(f"+{X}.partition=gpu", "SLURM_OPTION_OWNED", f"{X}.partition", f"~{X}.partition {S}.partition=gpu"),
    Row(f"+{X}.nodes=4", "SLURM_OPTION_OWNED", f"{X}.nodes", f"~{X}.nodes nodes=4"),
    Row(f"+{X}.output=x", "SLURM_OPTION_OWNED", f"{X}.output", f"~{X}.output", message="the run's folder"),
    Row(f"+{X}.time=60", "SLURM_OPTION_OWNED", f"{X}.time", f"~{X}.time", message="time_minutes"),
    Row(f"+{X}.segment=18", "SLURM_OPTION_OWNED", f"{X}.segment", f"~{X}.segment", message=f"{S}.segment says it"),
    Row(f"+{X}.exclusive=user", "SLURM_OPTION_OWNED", f"{X}.exclusive", f"~{X}.exclusive"),
    Row(f"+{X}.gres=gpu:8", "SLURM_OPTION_OWNED", f"{X}.gres", f"~{X}.gres", message=f"{S}.gpus says it"),
    Row(f"+{X}.gpus-per-task=1", "SLURM_OPTION_OWNED", f"{X}.gpus-per-task", f"~{X}.gpus-per-task", message="see all GPUs"),
    Row(f"+{X}.export=NONE", "SLURM_OPTION_OWNED", f"{X}.export", f"~{X}.export"),
    Row(f"+{X}.container-image=x", "SLURM_OPTION_OWNED", f"{X}.container-image", f"~{X}.container-image", message="runs on the host"),
    Row(f"+{R}.mpi=pmix", "SLURM_OPTION_OWNED", f"{R}.mpi", f"~{R}.mpi {S}.mpi=pmix"),
    Row(f"+{R}.container-mounts=/a:/a", "SLURM_OPTION_OWNED", f"{R}.container-mounts", f"~{R}.container-mounts"),
    Row(f"+{R}.nodelist=n0", "SLURM_OPTION_OWNED", f"{R}.nodelist", f"~{R}.nodelist"),
    Row(f"+{X}.hold=yes", "SLURM_OPTION_VALUE", f"{X}.hold", f"{X}.hold=true", message="is a flag"),
    Row(f"+{X}.comment=true", "SLURM_OPTION_VALUE", f"{X}.comment", f"~{X}.comment", message="needs a value"),
    Row(f"+{X}.licenses=[a,b]", "SLURM_OPTION_VALUE", f"{X}.licenses", f"{X}.licenses=VALUE"),
    Row(f"+{X}.mem=1G +{X}.mem-per-cpu=1G", "SLURM_OPTION_VALUE", f"{X}.mem-per-cpu", f"~{X}.mem-per-cpu", message="--mem, --mem-per-cpu"),
    # the container
    Row("container.image=''", "CONTAINER_IMAGE", "container.image", "container.image=REGISTRY/IMAGE:TAG"),
    Row("container.image=images/jax.sqsh", "CONTAINER_IMAGE", "container.image", "container.image=/FOLDER/images/jax.sqsh"),
    Row("container.image='~/jax.sqsh'", "CONTAINER_IMAGE", "container.image", "container.image=/FOLDER/jax.sqsh"),
    Row("", "CONTAINER_IMPORT", "container.image", "container.import_folder=/SHARED/images", N, "32 nodes would each import"),
    Row("container.import_folder=images", "CONTAINER_IMPORT_FOLDER", "container.import_folder", "container.import_folder=null", message="an absolute path"),
    Row("container.import_folder=/a:b", "CONTAINER_IMPORT_FOLDER", "container.import_folder", "container.import_folder=null"),
    Row("container.mounts=[/data]", "CONTAINER_MOUNT", "container.mounts", "'container.mounts=[/data:/data]'", message="FROM:TO"),
    Row("container.mounts=[/a:/a,data:/data]", "CONTAINER_MOUNT", "container.mounts", "'container.mounts=[/a:/a]'", message="absolute"),
    Row("container.mounts=[/data:data]", "CONTAINER_MOUNT", "container.mounts", "'container.mounts=[/data:/data]'"),
    Row("container.workdir=here", "CONTAINER_WORKDIR", "container.workdir", "container.workdir=null"),
    Row("checkpoint.directory=/lustre/ckpt", "CONTAINER_PATH", "checkpoint.directory", "'container.mounts=[/lustre/ckpt:/lustre/ckpt]'", W, "are lost with it"),
    Row("data=grain data.grain_train_files=/data/c4/*.rec data.tokenizer_path=a/b container.mounts=[/x:/x]", "CONTAINER_PATH", "data.grain_train_files", "'container.mounts=[/x:/x,/data/c4:/data/c4]'", W),
    # coming back
    Row("", "SLURM_REQUEUE", f"{S}.requeue", "checkpoint=periodic", W, experiment=DSV3),
    Row("", "SLURM_REQUEUE", f"{S}.requeue", f"{S}.requeue=false", W, experiment=DSV3),
    Row("trainer.start=autodetect", "SLURM_AUTODETECT", "trainer.start", "trainer.start=env", N),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}: {row.overrides}")
def test_a_mistake_is_found_and_its_hint_cures_it(row: Row) -> None:
    assert_its_hint_cures(row, plan)


def test_rows_reach_every_code() -> None:
    given = set()
    for name in ("check_slurm", "check_container"):
        text = (Path(launcher.plan.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        given |= set(re.findall(r'(?:error|warning|note)\(\s*"([A-Z][A-Z0-9_]+)"', text))
    assert given - {row.code for row in ROWS} == {"SLURM_SETUP"}  # below


def test_nothing_of_this_is_said_of_another_target() -> None:
    for row in ROWS:
        issues = plan(row.experiment, *row.overrides.split(), "target.kind=local").issues
        assert not [i for i in issues if i.code == row.code and i.code.startswith(("SLURM", "CONTAINER"))]


@pytest.mark.parametrize(
    "words",
    [
        f"+{X}.mail-type=END +{X}.nice=100 +{X}.contiguous=true +{X}.begin=now+1hour +{X}.gres=nvme:1",
        f"+{X}.segment=18 {S}.segment=false {S}.nodelist=\"'n[0-31]'\"",
        f"+{X}.exclusive=topo {S}.exclusive=false",
        f"+{X}.mem=100G +{X}.partition=null +{X}.hold=false",
        f"+{X}.gpus-per-node=gb200:4 {S}.gpus=none",
        f"+{R}.cpu-bind=cores +{R}.container-name=mine +{R}.container-remap-root=true +{R}.label=true",
        f"{S}.spare_nodes=2",
        f"{S}.spare_nodes=32",
        f"{S}.partition=\"'a,b'\" {S}.account=proj:x {S}.qos=normal {S}.constraint=\"'a&(b|c)'\" {S}.exclude=\"'n[0-3,7],m1-ib'\" {S}.mpi=pmix_v4",
        "container.image=./jax.sqsh",
        "container.image=/images/jax.sqsh 'container.mounts=[/a:/b:ro+rprivate,tmpfs:/scratch]' container.workdir=/b",
        "container.mounts=[/lustre:/lustre] checkpoint.directory=/lustre/x/ckpt",
        "checkpoint.directory=gs://bucket/ckpt",
    ],
)  # fmt: skip
def test_what_is_right_passes(words: str) -> None:
    issues = plan(FITS, *shlex.split(words)).issues
    assert {i.code for i in issues if i.code.startswith(("SLURM", "CONTAINER"))} <= {"CONTAINER_IMPORT"}


def test_dos_lines_in_setup_are_refused() -> None:
    asked = copy.deepcopy(plan(FITS).experiment)
    asked.target.slurm.setup = ["module load x\r", "true"]
    assert "SLURM_SETUP" in [i.code for i in make(asked).errors]
    asked.target.slurm.setup = ["module load x", "# two\n# lines"]
    assert "SLURM_SETUP" not in [i.code for i in make(asked).errors]


@pytest.mark.parametrize(
    ("experiment", "words", "nodes", "segment", "needed"),
    [
        ("dsv3_128gpu", "", 32, 16, 2),
        ("dsv3_1024gpu", "", 256, 16, 16),
        # 36 nodes as three domains of 12: not two of 18, which is the largest part that a rack holds.
        ("dsv3_128gpu", "nodes=36 mesh.ici.data=3 mesh.ici.fsdp=2 mesh.dcn.data=3 mesh.dcn.fsdp=1", 36, 12, 3),
        # Two segments of 4 nodes in each rack of 18, four even.
        ("dsv3_128gpu", "nodes=32 mesh.ici.fsdp=2 mesh.dcn.fsdp=8", 32, 4, 2),
        ("dsv3_128gpu", f"{S}.spare_nodes=2", 34, 17, 2),
        ("dsv3_128gpu", f"{S}.spare_nodes=4", 36, 18, 2),
        ("dsv3_128gpu", f"{S}.spare_nodes=16", 48, 16, 3),
        ("qwen3_30b_a3b_16gpu", f"{S}.spare_nodes=1", 5, 5, 1),
        ("dsv3_128gpu", f"{S}.segment=false {S}.spare_nodes=3", 35, None, None),
        ("deepseek2_16b_16gpu", "hardware=h200_hgx nodes=2 mesh.ici.fsdp=1 mesh.dcn.fsdp=2", 2, None, None),
        ("moe_tiny_cpu", "target=slurm", 1, None, None),
    ],
)
def test_a_segment_is_a_domain_of_the_mesh(
    experiment: str, words: str, nodes: int, segment: int | None, needed: int | None
) -> None:
    made = plan(experiment, *words.split())
    assert made.mesh is not None
    placed = placement(made.experiment, made.mesh)
    assert placed is not None
    assert (placed.nodes, placed.segment, racks(made.experiment, placed)) == (nodes, segment, needed)


def test_what_is_refused_by_name_is_an_option_that_exists() -> None:
    for program in PROGRAMS:
        # SLURM 24.11 takes --export-file for sbatch alone.
        assert {*HOMES[program], *FIXED[program]} - set(known(program)) <= {"export-file"}


SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (f"{S}.setup=['export HF_TOKEN={SECRET}']", f"{S}.setup"),
        (f"{S}.setup=['export WANDB_API_KEY=opensesame1']", f"{S}.setup"),
        (f"{S}.setup=['MY_PASSWORD=\"open sesame1\" ./login']", f"{S}.setup"),
        (f"+{X}.comment={SECRET}", f"{X}.comment"),
        (f"+{R}.my-password=opensesame1", f"{R}.my-password"),
        (f"container.mounts=[/x/{SECRET}:/y]", "container.mounts"),
    ],
)
def test_a_literal_secret_is_refused_and_not_shown(words: str, field: str) -> None:
    made = plan(FITS, words)
    (issue,) = [i for i in made.issues if i.code == "SECRET_LITERAL"]
    assert issue.field == field
    assert "opensesame1" not in repr(made.issues)
    assert "sesame1" not in repr(made.issues)
    assert SECRET not in repr(made.issues)
    typed = shlex.split(issue.hint.removeprefix("type ").partition(" and export")[0])
    cured = plan(FITS, *[word for word in typed if not word.startswith("~")])
    assert "SECRET_LITERAL" not in [i.code for i in cured.issues]


def test_what_only_reads_a_secret_passes() -> None:
    lines = (
        "export HF_TOKEN=$MY_TOKEN",
        "export A_KEY=$(cat key)",
        'TOKEN="$(vault x)"',
        "export TOKEN_FILE=/x",
        "ulimit -n 65536",
    )
    asked = copy.deepcopy(plan(FITS).experiment)
    asked.target.slurm.setup = list(lines)
    assert "SECRET_LITERAL" not in [i.code for i in make(asked).issues]


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), texts)
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(texts, scalars, max_size=2))
names = st.one_of(texts, st.sampled_from(sorted({*known("sbatch"), *known("srun")})))
extras = st.dictionaries(names, values, max_size=3)
BASE = plan(FITS).experiment


@given(
    sbatch=extras,
    srun=extras,
    lists=st.tuples(st.lists(texts, max_size=2), st.lists(texts, max_size=2)),
    text=st.none() | texts,
    number=st.integers(-(10**9), 10**9),
)
@settings(max_examples=150, deadline=None)
def test_any_value_gives_issues_and_never_an_exception(sbatch, srun, lists, text, number) -> None:
    asked = copy.deepcopy(BASE)
    slurm = asked.target.slurm
    slurm.sbatch, slurm.srun, slurm.setup, asked.container.mounts = sbatch, srun, *lists
    slurm.partition = slurm.nodelist = asked.container.image = asked.container.workdir = text
    slurm.time_minutes = slurm.signal_seconds = slurm.spare_nodes = number
    for issue in make(asked).issues:
        assert issue.code
        assert issue.field
        assert issue.message
