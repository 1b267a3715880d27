"""Override words: what is legal gives what Hydra gives, what is wrong is told at once and with the cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config import groups
from launcher.config.compose import CONFIG_NAME, Composer, register_schema
from launcher.config.overrides import schema_keys
from launcher.issue import Issue, Severity
from launcher.plan.plan import make

EXPERIMENTS = groups.options("exp")


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def issues_of(composer: Composer, *words: str) -> tuple[Issue, ...]:
    composed = composer.compose(words)
    assert composed.experiment is None
    assert all(issue.severity is Severity.ERROR for issue in composed.issues)
    return composed.issues


# What is wrong, and what it answers.


@pytest.mark.parametrize(
    ("word", "code", "right"),
    [
        ("trainer.stepz=4", "KEY_UNKNOWN", "trainer.steps"),
        ("mesh.ici.experts=4", "KEY_UNKNOWN", "mesh.ici.expert"),
        ("msh.ici.expert=4", "KEY_UNKNOWN", "mesh.ici.expert"),
        ("remat.contxt=offload", "KEY_UNKNOWN", "remat.context"),
        ("stepz=4", "KEY_UNKNOWN", "trainer.steps"),
        ("batch_size=4", "KEY_UNKNOWN", "trainer.per_device_batch_size"),
        ("checkpointing.enable_checkpointing=false", "KEY_UNKNOWN", "checkpoint.enable_checkpointing"),
        # MaxText's own names, and those of its mesh.
        ("steps=4", "KEY_UNKNOWN", "trainer.steps="),
        ("ici_fsdp_parallelism=4", "KEY_UNKNOWN", "mesh.ici.fsdp="),
        ("model_name=mixtral-8x7b", "KEY_UNKNOWN", "model.name="),
        ("adam_b1=0.8", "KEY_UNKNOWN", "+maxtext.adam_b1="),
        ("adam_bb1=0.8", "KEY_UNKNOWN", "+maxtext.adam_b1"),
        # Groups and experiments.
        ("moe=tee", "OPTION_UNKNOWN", "moe=te?"),
        ("hardware=gb200_nvl", "OPTION_UNKNOWN", "hardware=gb200_nvl72"),
        ("xla=multistreams", "OPTION_UNKNOWN", "xla=multistream"),
        ("hardwear=cpu", "KEY_UNKNOWN", "hardware"),
        # Values.
        ("trainer.steps=four", "VALUE_TYPE", "trainer.steps=VALUE with a value of type int"),
        ("trainer.steps=5.5", "VALUE_TYPE", "type int"),
        ("moe.te_moe_block=maybe", "VALUE_TYPE", "type bool"),
        ("mesh.ici.expert=", "VALUE_TYPE", "type int"),
        ("trainer.workarounds=te_scan", "VALUE_TYPE", "type 'trainer.workarounds=[te_scan]'"),
        ("env.secrets=A B", "VALUE_TYPE", "type 'env.secrets=[A B]'"),
        ("data.train_data_columns=text", "VALUE_TYPE", "type 'data.train_data_columns=[text]'"),
        ("trainer.workarounds=a,b", "OVERRIDE_SWEEP", "type 'trainer.workarounds=[a,b]'"),
        ("trainer.steps=3,4", "OVERRIDE_SWEEP", "add -m"),
        ("env.vars.A=a,b", "OVERRIDE_SWEEP", "env.vars.A='a,b'"),
        ("trainer.steps", "OVERRIDE_SYNTAX", "KEY=VALUE"),
        ("env.vars.A=[1", "OVERRIDE_SYNTAX", "env.vars.A='[1'"),
        ("env.vars.A==mlx5_0", "OVERRIDE_SYNTAX", "env.vars.A='=mlx5_0'"),
        ("env.vars.A='it''s'", "OVERRIDE_SYNTAX", "close each quote"),
    ],
)
def test_a_mistake_names_its_cure(composer: Composer, word: str, code: str, right: str) -> None:
    (issue,) = issues_of(composer, "+exp=moe_tiny_cpu", word)
    assert issue.code == code
    assert word.partition("=")[0] == issue.field
    assert right in issue.hint


@pytest.mark.parametrize(
    ("name", "right"),
    [("dsv3_128", "+exp=dsv3_128gpu"), ("moe_tiny", "+exp=moe_tiny_cpu"), ("qwen3_235b", "+exp=qwen3_235b_a22b_64gpu")],
)
def test_an_unknown_experiment_names_the_nearest(composer: Composer, name: str, right: str) -> None:
    (issue,) = issues_of(composer, f"+exp={name}")
    assert (issue.code, issue.field) == ("OPTION_UNKNOWN", "exp")
    assert right in issue.hint
    assert all(known in issue.hint for known in EXPERIMENTS)


def test_no_experiment_lists_them(composer: Composer) -> None:
    (issue,) = issues_of(composer, "trainer.steps=4")
    assert issue.code == "EXPERIMENT_MISSING"
    assert all(known in issue.hint for known in EXPERIMENTS)


TYPO = st.tuples(
    st.sampled_from(sorted(k for k in schema_keys() if "." in k)), st.integers(0, 99), st.sampled_from("qxz")
)


@given(TYPO)
@budget(max_examples=60, deadline=None)
def test_no_typo_is_answered_with_append(composer: Composer, typo: tuple[str, int, str]) -> None:
    key, at, letter = typo
    at %= len(key)
    wrong = key[:at] + letter + key[at + 1 :]
    if wrong == key or "." not in wrong or wrong.split(".")[0] not in groups.groups():
        return
    issues = composer.compose(["+exp=moe_tiny_cpu", f"{wrong}=1"]).issues
    assert [issue.code for issue in issues] == ["KEY_UNKNOWN"]
    assert "append" not in (issues[0].message + issues[0].hint).lower()


def test_all_mistakes_are_told_at_once(composer: Composer) -> None:
    issues = issues_of(
        composer, "+exp=moe_tinny", "trainer.stepz=4", "moe=tee", "mesh.ici.expert=two", "trainer.steps=1,2", "nonsense"
    )
    assert sorted((i.code, i.field) for i in issues) == [
        ("KEY_UNKNOWN", "trainer.stepz"),
        ("OPTION_UNKNOWN", "exp"),
        ("OPTION_UNKNOWN", "moe"),
        ("OVERRIDE_SWEEP", "trainer.steps"),
        ("OVERRIDE_SYNTAX", "nonsense"),
        ("VALUE_TYPE", "mesh.ici.expert"),
    ]


def test_a_group_chosen_twice_is_refused(composer: Composer) -> None:
    (issue,) = issues_of(composer, "+exp=moe_tiny_cpu", "mesh=1x1x2", "mesh=2x8x8")
    assert (issue.code, issue.field) == ("OPTION_TWICE", "mesh")


@pytest.mark.parametrize(
    ("word", "code", "right"),
    [
        ("+maxtext.adam_bb1=0.8", "MAXTEXT_KEY_UNKNOWN", "adam_b1"),
        ("+maxtext.ici_fsdp_paralelism=2", "MAXTEXT_KEY_UNKNOWN", "mesh.ici.fsdp="),
        ("+maxtext.adam_b1=often", "MAXTEXT_VALUE_TYPE", "0.9"),
        ("precision.quantization=te_mxfp9", "MAXTEXT_CHOICE", "te_mxfp8"),
        ("+maxtext.pgle=true", "MAXTEXT_KEY_NOT_PUBLIC", "xla.pgle=true"),
        ("+maxtext.zero_one=false", "MAXTEXT_KEY_NOT_PUBLIC", "trainer.shard_optimizer_over_data=false"),
    ],
)
def test_a_mistake_in_a_maxtext_key_is_told_by_the_plan(composer: Composer, word: str, code: str, right: str) -> None:
    composed = composer.compose(["+exp=dsv3_128gpu", word])
    assert composed.experiment is not None, composed.issues
    found = [issue for issue in make(composed.experiment).errors if issue.code == code]
    assert len(found) == 1
    assert right in found[0].hint
    assert "append" not in found[0].hint


# What is legal.


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("trainer.steps=7", lambda e: e.trainer.steps == 7),
        ("maxtext.adam_b1=0.8", lambda e: e.maxtext == {"adam_b1": 0.8}),
        ("xla.flags.xla_gpu_x=true", lambda e: e.xla.flags["xla_gpu_x"] is True),
        ("env.vars.NCCL_DEBUG=INFO", lambda e: e.env.vars == {"NCCL_DEBUG": "INFO"}),
        ("mesh=2x8x8", lambda e: (e.mesh.ici.fsdp, e.mesh.dcn.fsdp) == (8, 2)),
    ],
)
def test_a_plus_too_many_or_too_few_is_forgiven(composer: Composer, plus: str, word: str, read: Any) -> None:
    composed = composer.compose(["+exp=moe_tiny_cpu", plus + word])
    assert composed.experiment is not None, composed.issues
    assert read(composed.experiment)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_experiment_may_lack_its_plus(composer: Composer, plus: str) -> None:
    composed = composer.compose([f"{plus}exp=moe_tiny_cpu"])
    assert composed.experiment is not None, composed.issues
    assert composed.experiment.name == "moe_tiny_cpu"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("'a,b'", "a,b"),
        ('"a,b"', "a,b"),
        ("a\\,b", "a,b"),
        ("'x y'", "x y"),
        ("'$HOME'", "$HOME"),
        ('"it\'s"', "it's"),
        ("''", ""),
        ("null", None),
        ("1e-3", 0.001),
        ("'1e-3'", "1e-3"),
        ("[a,b]", ["a", "b"]),
        ("{a: 1}", {"a": 1}),
        ("mlx5_0:1", "mlx5_0:1"),
        ("'=mlx5_0'", "=mlx5_0"),
    ],
)
def test_values_reach_the_experiment_unchanged(composer: Composer, typed: str, value: object) -> None:
    composed = composer.compose(["+exp=moe_tiny_cpu", f"env.vars.A={typed}"])
    assert composed.experiment is not None, composed.issues
    assert composed.experiment.env.vars["A"] == value


def test_a_flag_can_be_taken_out(composer: Composer) -> None:
    composed = composer.compose(["+exp=dsv3_128gpu", "~xla.flags.xla_gpu_memory_limit_slop_factor"])
    assert composed.experiment is not None, composed.issues
    assert len(composed.experiment.xla.flags) == 6


def test_later_words_win(composer: Composer) -> None:
    composed = composer.compose(["+exp=moe_tiny_cpu", "trainer.steps=7", "trainer.steps=8"])
    assert composed.experiment is not None
    assert composed.experiment.trainer.steps == 8


def test_one_composition_leaves_no_trace_in_the_next(composer: Composer) -> None:
    composer.compose(["+exp=moe_tiny_cpu", "trainer.steps=7", "env.vars.A=1"])
    composed = composer.compose(["+exp=moe_tiny_cpu"])
    assert composed.experiment is not None
    assert (composed.experiment.trainer.steps, composed.experiment.env.vars) == (30, {})


# The user's own files.


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "exp").mkdir()
    (tmp_path / "moe").mkdir()
    return tmp_path


EXPERIMENT = "# @package _global_\ndefaults:\n  - moe_tiny_cpu\nname: mine\ndescription: my own\n"


def test_a_users_experiment_and_group_win(mine: Path) -> None:
    (mine / "exp" / "mine.yaml").write_text(EXPERIMENT + "trainer: {steps: 5}\n")
    (mine / "moe" / "dense.yaml").write_text("sparse_matmul: false\ncapacity_factor: 2.0\n")
    composed = Composer(groups.search_path([mine])).compose(["+exp=mine"])
    assert composed.experiment is not None, composed.issues
    assert (composed.experiment.name, composed.experiment.trainer.steps) == ("mine", 5)
    assert composed.experiment.moe.capacity_factor == 2.0
    assert composed.experiment.model.name == "deepseek3-tiny"
    assert ("mine", "my own") in groups.experiments(groups.search_path([mine]))


def test_the_variable_names_folders_too(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "exp" / "mine.yaml").write_text(EXPERIMENT)
    monkeypatch.setenv(groups.CONF_DIRS_VARIABLE, str(mine))
    assert Composer(groups.search_path()).compose(["+exp=mine"]).experiment is not None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere: no such folder"):
        groups.search_path([tmp_path / "nowhere"])


def test_unknown_keys_in_a_users_files_name_file_and_key(mine: Path) -> None:
    experiment, group = mine / "exp" / "mine.yaml", mine / "moe" / "mine.yaml"
    experiment.write_text(EXPERIMENT + "trainer: {stepz: 5}\nmesh: {ici: {experts: 2}}\nenv: {vars: {ANY: 1}}\n")
    group.write_text("te_moe_block: true\nragged_bufer_factor: 3\n")
    issues = issues_of(Composer(groups.search_path([mine])), "+exp=mine", "moe=mine")
    assert sorted((i.code, i.field, i.message.partition(":")[0], i.hint) for i in issues) == [
        ("FILE_KEY_UNKNOWN", "mesh.ici.experts", str(experiment), "did you mean mesh.ici.expert?"),
        ("FILE_KEY_UNKNOWN", "moe.ragged_bufer_factor", str(group), "did you mean moe.ragged_buffer_factor?"),
        ("FILE_KEY_UNKNOWN", "trainer.stepz", str(experiment), "did you mean trainer.steps?"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (EXPERIMENT + "trainer: {steps: many}\n", "many"),
        (EXPERIMENT.replace("moe_tiny_cpu", "moe_tiny_gpu"), "moe_tiny_gpu"),
        ("name: [1,\n", "line"),
    ],
)
def test_other_faults_of_a_file_are_told_too(mine: Path, text: str, told: str) -> None:
    (mine / "exp" / "mine.yaml").write_text(text)
    (issue,) = issues_of(Composer(groups.search_path([mine])), "+exp=mine")
    assert issue.code == "CONFIG_FILE"
    assert told in issue.message


# The same as Hydra itself.


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    register_schema()
    with initialize_config_dir(config_dir=str(groups.CONF_DIR), version_base=None):
        yield


def by_hydra(words: list[str]) -> dict[str, Any]:
    container = OmegaConf.to_container(compose(CONFIG_NAME, words))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def by_us(composer: Composer, words: list[str]) -> dict[str, Any]:
    composed = composer.compose(words)
    assert composed.experiment is not None, composed.issues
    container = OmegaConf.to_container(OmegaConf.structured(composed.experiment))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_what_hydra_composes(composer: Composer, hydra: None, name: str) -> None:
    assert by_us(composer, [f"+exp={name}"]) == by_hydra([f"+exp={name}"])


_TEXT = st.from_regex(r"[a-z][a-z0-9_/.]{0,8}", fullmatch=True).filter(
    lambda text: text not in ("null", "true", "false", "inf", "nan")
)
_BY_TYPE: dict[str, st.SearchStrategy[str]] = {
    "List": st.lists(_TEXT, max_size=3).map(lambda items: f"[{','.join(items)}]"),
    "int": st.integers(1, 4096).map(str),
    "float": st.one_of(st.integers(1, 64).map(str), st.floats(0.001, 9).map(lambda f: f"{f:.4g}")),
    "bool": st.sampled_from(["true", "false", "True", "no"]),
    "str": _TEXT,
}


def _word(key: str, kind: object) -> st.SearchStrategy[str]:
    for name, values in _BY_TYPE.items():
        if name in str(kind):
            nullable = values | st.just("null") if "Optional" in str(kind) else values
            return nullable.map(lambda value: f"{key}={value}")
    raise AssertionError(f"no values for {key}: {kind}")


_LEAVES = {k: t for k, t in schema_keys().items() if "launcher" not in str(t) and "Dict" not in str(t)}
_VALUE = st.one_of([_word(key, kind) for key, kind in _LEAVES.items()])
_OPEN = st.one_of(
    st.tuples(st.sampled_from(["adam_b1", "dropout_rate"]), _BY_TYPE["float"]).map("+maxtext.{0[0]}={0[1]}".format),
    st.tuples(st.sampled_from(["xla_gpu_a", "xla_gpu_b"]), _BY_TYPE["bool"]).map("+xla.flags.{0[0]}={0[1]}".format),
    st.tuples(st.sampled_from(["NCCL_DEBUG", "A"]), _TEXT).map("++env.vars.{0[0]}={0[1]}".format),
)
_GROUPS = [g for g in groups.groups() if g != "exp"]
_OPTION = st.sampled_from([(g, o) for g in _GROUPS for o in groups.options(g)])


@given(
    st.sampled_from(EXPERIMENTS),
    st.lists(_OPTION, max_size=3, unique_by=lambda choice: choice[0]),
    st.tuples(st.lists(_VALUE, max_size=6), st.lists(_OPEN, max_size=2, unique_by=lambda word: word.split("=")[0])).map(
        lambda pair: pair[0] + pair[1]
    ),
)
@budget(max_examples=25, deadline=None)
def test_legal_words_give_what_hydra_gives(
    hydra: None, composer: Composer, exp: str, options: list[tuple[str, str]], values: list[str]
) -> None:
    words = [f"+exp={exp}", *(f"{group}={option}" for group, option in options), *values]
    assert by_us(composer, words) == by_hydra(words)
