"""The shipped config files: each is used, explained and legal, and each experiment is complete."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import yaml

from launcher.config import groups, maxtext_schema
from launcher.config.compose import Composer
from launcher.config.schema import MAXTEXT_GROUPS, OWN_WORDS, Experiment
from launcher.plan.plan import Plan, make

EXPERIMENTS = groups.options("exp")
FILES = sorted(groups.CONF_DIR.glob("*/*.yaml"))

ALSO_OFFERED: dict[str, tuple[str, ...]] = {
    # Files that no experiment takes, with the words of somebody who would.
    "hardware/gb300_nvl72": ("+exp=dsv3_128gpu_fits", "hardware=gb300_nvl72"),
    "hardware/b200_hgx": (
        "+exp=deepseek2_16b_16gpu",
        "hardware=b200_hgx",
        "nodes=2",
        "mesh.ici.fsdp=1",
        "mesh.dcn.fsdp=2",
    ),
    "hardware/h100_hgx": (
        "+exp=mixtral_8x7b_16gpu",
        "hardware=h100_hgx",
        "nodes=2",
        "mesh.ici.fsdp=1",
        "mesh.dcn.fsdp=2",
    ),
    "precision/fp8_currentscaling": ("+exp=deepseek2_16b_16gpu", "precision=fp8_currentscaling"),
    "xla/multistream": ("+exp=dsv3_128gpu_fits", "xla=multistream"),
    "data/hf": ("+exp=dsv3_128gpu_fits", "data=hf", "data.tokenizer_path=deepseek-ai/DeepSeek-V3"),
    "data/grain": (
        "+exp=dsv3_128gpu_fits",
        "data=grain",
        "data.grain_train_files=/data/c4/*.array_record",
        "data.tokenizer_path=/data/tokenizer",
    ),
    "fabric/gb200_ib": ("+exp=dsv3_128gpu_fits", "fabric=gb200_ib"),
    **{
        f"fabric/{name}": ("+exp=dsv3_128gpu_fits", "target=kubernetes", f"fabric={name}")
        for name in ("coreweave_ib", "gke_a4x", "gke_dranet", "oke", "eks_efa")
    },
}


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def experiment_of(composer: Composer, *words: str) -> Experiment:
    composed = composer.compose(words)
    assert composed.experiment is not None, composed.issues
    return composed.experiment


def plan_of(composer: Composer, *words: str) -> Plan:
    return make(experiment_of(composer, *words))


@pytest.mark.parametrize("group", MAXTEXT_GROUPS)
def test_every_field_is_a_maxtext_key_or_an_own_word(group: str) -> None:
    fields = {f.name for f in dataclasses.fields(Experiment.__dataclass_fields__[group].default_factory)}  # type: ignore[arg-type]
    own = OWN_WORDS.get(group, frozenset())
    for version in maxtext_schema.versions():
        keys = maxtext_schema.load(version).keys
        assert fields - own <= set(keys), f"not in MaxText {version}"
        assert not own & set(keys), "an own word must not look like a MaxText key"
    assert own <= fields


def test_no_maxtext_key_belongs_to_two_groups() -> None:
    found: list[str] = []
    for group in MAXTEXT_GROUPS:
        factory = Experiment.__dataclass_fields__[group].default_factory
        found += [f.name for f in dataclasses.fields(factory) if f.name not in OWN_WORDS.get(group, ())]  # type: ignore[arg-type]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_says_what_it_is(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines = lines[1:] if lines[0] == "# @package _global_" else lines
    assert lines[0].startswith("# ")
    assert max(map(len, lines)) <= 132


def used_by_experiments() -> set[str]:
    used: set[str] = set()
    for name in EXPERIMENTS:
        used.add(f"exp/{name}")
        text = (groups.CONF_DIR / "exp" / f"{name}.yaml").read_text(encoding="utf-8")
        for entry in yaml.safe_load(text)["defaults"]:
            if isinstance(entry, dict):
                used |= {f"{key.removeprefix('override /')}/{option}" for key, option in entry.items()}
            else:
                used.add(f"exp/{entry}")
    for name in sorted(used):
        text = (groups.CONF_DIR / f"{name}.yaml").read_text(encoding="utf-8")
        if not name.startswith("exp/"):
            used |= {f"{name.partition('/')[0]}/{parent}" for parent in yaml.safe_load(text).get("defaults", [])}
    # What every experiment gets from the primary config, and does not name again.
    return used | {"fabric/generic", "trainer/maxtext", "target/local"}


def test_every_file_is_used_by_an_experiment_or_offered_below() -> None:
    files = {name_of(file) for file in FILES if file.parent.name != "target"}
    used = {name for name in used_by_experiments() if not name.startswith("target/")}
    assert files == used | set(ALSO_OFFERED)
    assert not used & set(ALSO_OFFERED)


@pytest.mark.parametrize("name", sorted(ALSO_OFFERED))
def test_what_no_experiment_takes_can_be_taken(composer: Composer, name: str) -> None:
    plan = plan_of(composer, *ALSO_OFFERED[name])
    assert plan.errors == ()
    group, option = name.split("/")
    written = yaml.safe_load((groups.CONF_DIR / group / f"{option}.yaml").read_text(encoding="utf-8"))
    taken = getattr(plan.experiment, group)
    plain = {k: v for k, v in written.items() if k not in ("defaults", "ici", "dcn")}
    assert {k: getattr(taken, k) for k in plain if not isinstance(plain[k], dict)} == {
        k: v for k, v in plain.items() if not isinstance(v, dict)
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_complete_and_has_no_error(composer: Composer, name: str) -> None:
    plan = plan_of(composer, f"+exp={name}")
    assert plan.errors == ()
    assert plan.experiment.name == name
    assert plan.experiment.description
    assert plan.experiment.nodes is not None
    assert plan.mesh is not None
    assert plan.mesh.gpus == plan.experiment.nodes * plan.experiment.hardware.gpus_per_node
    assert plan.mesh.experts_in_domain
    if name.endswith("gpu"):
        assert name.rpartition("_")[2] == f"{plan.mesh.gpus}gpu"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_batch_divides_over_all_shards(composer: Composer, name: str) -> None:
    plan = plan_of(composer, f"+exp={name}")
    assert plan.mesh is not None
    assert plan.batch is not None
    assert plan.batch.sequences % (plan.mesh.fsdp * plan.mesh.expert_parallel) == 0


def test_te_serves_the_models_with_deepseeks_decoder_and_only_those(composer: Composer) -> None:
    models = maxtext_schema.load("0.2.5").models
    for name in EXPERIMENTS:
        asked = experiment_of(composer, f"+exp={name}")
        deepseek = models[asked.model.name].get("decoder_block") == "deepseek"
        several = asked.nodes * asked.hardware.gpus_per_node > 1  # TE's block exchanges tokens between GPUs
        assert bool(asked.moe.te_moe_block) == (deepseek and asked.hardware.platform == "gpu" and several), name


@pytest.mark.parametrize(
    "name", ["qwen3_235b_a22b_64gpu", "qwen3_30b_a3b_16gpu", "mixtral_8x7b_16gpu", "gpt_oss_120b_32gpu"]
)
def test_asking_for_te_where_it_cannot_be_says_why(composer: Composer, name: str) -> None:
    plan = plan_of(composer, f"+exp={name}", "moe=te", "precision=te_bf16")
    assert plan.errors
    assert any("deepseek" in (issue.message + issue.hint).lower() for issue in plan.errors)


def test_gpt_oss_takes_the_only_path_that_maxtext_leaves_it(composer: Composer) -> None:
    asked = experiment_of(composer, "+exp=gpt_oss_120b_32gpu")
    # MaxText 0.2.5: "GPT-OSS MoE only supports dropless (capacity_factor=-1) with dense matmul."
    assert asked.moe.sparse_matmul is True
    assert asked.moe.capacity_factor is None


SCALED = {"dsv3_128gpu_fits": (1, 2), "dsv3_256gpu": (1, 4), "dsv3_512gpu": (1, 8), "dsv3_1024gpu": (8, 2)}


@pytest.mark.parametrize("name", sorted(SCALED))
def test_a_larger_dsv3_differs_in_its_dcn_part_alone(composer: Composer, name: str) -> None:
    small, large = plan_of(composer, "+exp=dsv3_128gpu_fits"), plan_of(composer, f"+exp={name}")
    assert small.settings is not None
    assert large.settings is not None
    data, fsdp = SCALED[name]
    assert large.settings.keys == small.settings.keys | {
        "dcn_data_parallelism": data,
        "dcn_fsdp_parallelism": fsdp,
    }
    assert (large.experiment.xla, large.experiment.env) == (small.experiment.xla, small.experiment.env)


def test_dsv3_fits_differs_from_the_article_in_remat_alone(composer: Composer) -> None:
    article, fits = plan_of(composer, "+exp=dsv3_128gpu"), plan_of(composer, "+exp=dsv3_128gpu_fits")
    assert article.settings is not None
    assert fits.settings is not None
    changed = {
        key: (article.settings.keys.get(key), fits.settings.keys.get(key))
        for key in article.settings.keys | fits.settings.keys
        if article.settings.keys.get(key) != fits.settings.keys.get(key)
    }
    assert changed == {
        "context": ("device", "offload"),
        # Names that match no tensor of public MaxText with TE.
        "mlpwi": ("device", None),
        "moe_mlpwi_0": ("offload", None),
        "moe_mlpwi_1": ("offload", None),
        "moe_mlpwo": ("device", None),
    }


@pytest.mark.parametrize("option", groups.options("hardware"))
def test_hardware_is_consistent(composer: Composer, option: str) -> None:
    hardware = experiment_of(composer, "+exp=moe_tiny_cpu", f"hardware={option}").hardware
    assert hardware.name == option
    if hardware.platform == "cpu":
        assert (hardware.hbm_bytes, hardware.peak_bf16) == (0, 0)
        return
    assert 2 <= hardware.peak_fp8 / hardware.peak_bf16 <= 2.01
    assert hardware.nvlink_bytes_per_s > hardware.network_bytes_per_s > 0
    assert hardware.hbm_bytes_per_s > hardware.nvlink_bytes_per_s
    blackwell = hardware.compute_capability >= 100
    assert (hardware.mxfp8, hardware.peak_fp4 > 0) == (blackwell, blackwell)
    assert hardware.arch == ("aarch64" if hardware.gpu.startswith("GB") else "x86_64")
    assert math.log2(hardware.gpus_per_node).is_integer()


def test_gb200_is_what_xla_says_of_it(composer: Composer) -> None:
    # openxla/xla, target_config/specs/gb200.txtpb.
    hardware = experiment_of(composer, "+exp=dsv3_128gpu").hardware
    assert (hardware.hbm_bytes, hardware.hbm_bytes_per_s) == (197897748480, 7928064000000)
