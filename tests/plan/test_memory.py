"""Memory: state and host bytes against XLA's, to the byte or nearly; the peak within what the verdict allows for."""

import dataclasses

import pytest
from memory_cases import COMPOSER, GIB, case, estimate

from benchmarks.compiled import Compiled, rows
from launcher.config.groups import options
from launcher.plan import activations, check_memory, memory
from launcher.plan.memory import Verdict
from launcher.plan.plan import Plan, make
from launcher.render.plan_numbers import numbers_json
from launcher.render.plan_text import plan_text

COMPILED = list(rows())


def plan(*words: str) -> Plan:
    composed = COMPOSER.compose(list(words))
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


@pytest.mark.parametrize("row", COMPILED, ids=lambda r: r.name)
def test_state_is_what_xla_takes_as_arguments(row: Compiled) -> None:
    assert row.estimate.state_bytes == pytest.approx(row.arguments, rel=2e-3)


@pytest.mark.parametrize("row", [r for r in COMPILED if r.host], ids=lambda r: r.name)
def test_host_bytes_are_xlas(row: Compiled) -> None:
    """114.375 and 174.0 GiB, as XLA prints them (46.47 is 46.465 rounded)."""
    assert row.estimate.host / GIB == pytest.approx(row.host / GIB, abs=0.006)


@pytest.mark.parametrize("row", [r for r in COMPILED if r.device], ids=lambda r: r.name)
def test_the_peak_is_xlas_within_eight_percent_and_deepseeks_within_four(row: Compiled) -> None:
    assert row.device
    most = 0.04 if row.model == "dsv3" else 0.08
    assert row.estimate.total == pytest.approx(row.device, rel=most)


def test_the_receive_buffers_are_transformer_engines() -> None:
    assert estimate("+exp=dsv3_128gpu").receive_rows == 393216
    assert estimate("+exp=dsv3_128gpu", "moe.ragged_buffer_factor=-1").receive_rows == 1576960


def test_a_name_that_is_not_there_keeps_nothing() -> None:
    article = estimate("+exp=dsv3_128gpu")
    assert article.host == 0
    assert not {p.name for p in article.kept} & {"moe_mlpwi_0", "moe_mlpwi_1", "mlpwi"}
    named = memory.estimate(case("+exp=dsv3_128gpu"), frozenset({"moe_mlpwi_0", "moe_mlpwi_1"}))
    assert named is not None
    assert named.host == 174 * GIB
    assert named.total == article.total


@pytest.mark.parametrize(
    ("words", "factor"),
    [(("precision.weight_dtype=float32", "precision.mu_dtype=float32"), 2.0), (("precision.mu_dtype=float32",), 4 / 3),
     (("+maxtext.opt_type=sgd",), 1 / 3), (("mesh=4x8x8", "nodes=64"), 0.5)],
)  # fmt: skip
def test_state_follows_types_optimizer_and_mesh(words: tuple[str, ...], factor: float) -> None:
    before = estimate("+exp=dsv3_128gpu").state_bytes
    assert estimate("+exp=dsv3_128gpu", *words).state_bytes == pytest.approx(before * factor, rel=1e-3)


def test_state_in_host_memory_leaves_the_gpu() -> None:
    here = estimate("+exp=dsv3_128gpu")
    away = estimate("+exp=dsv3_128gpu", "+maxtext.optimizer_memory_host_offload=true")
    assert away.state_bytes + away.host == here.state_bytes
    assert {part.name for part in away.offloaded} == {"mu", "nu"}


def test_the_limit_follows_the_variable_and_the_hardware() -> None:
    assert estimate("+exp=dsv3_128gpu").limit == int(0.88 * 197897748480)
    assert estimate("+exp=dsv3_128gpu", "env=none").limit == int(0.75 * 197897748480)
    assert estimate("+exp=moe_tiny_cpu").verdict is None


def test_verdicts_leave_room_for_the_error() -> None:
    found = estimate("+exp=dsv3_128gpu_fits")
    for limit, verdict in ((1.09, Verdict.FITS), (1.0, Verdict.TIGHT), (0.93, Verdict.TIGHT), (0.91, Verdict.OVER)):
        assert dataclasses.replace(found, limit=int(found.total * limit)).verdict is verdict


def test_the_article_is_over_and_the_cure_that_is_offered_fits() -> None:
    made = plan("+exp=dsv3_128gpu")
    over = next(issue for issue in made.issues if issue.code == "MEMORY_OVER")
    assert over.severity == "warning"
    assert "162.2" in over.message
    assert not made.errors
    assert any(i.code == "REMAT_NO_SUCH_TENSOR" and i.field == "remat.moe_mlpwi_0" for i in made.issues)
    assert over.hint.startswith("type remat.context=offload (136")
    for words in (part.split()[0] for part in over.hint.removeprefix("type ").split(" or ")):
        cured = plan("+exp=dsv3_128gpu", words)
        assert cured.numbers is not None
        assert cured.numbers.memory.verdict is Verdict.FITS, words
        assert not cured.errors


def test_between_the_two_it_is_tight_and_the_compiler_is_named() -> None:
    """Batch 5: 157.2 GiB by XLA, of 162.2."""
    made = plan("+exp=dsv3_128gpu", "trainer.per_device_batch_size=5")
    tight = next(issue for issue in made.issues if issue.code == "MEMORY_TIGHT")
    assert tight.severity == "note"
    assert "preflight aot" in tight.hint
    assert not [issue for issue in made.issues if issue.code == "MEMORY_OVER"]


@pytest.mark.parametrize("name", options("exp"))
def test_shipped_experiments_fit_but_the_articles_own(name: str) -> None:
    made = plan(f"+exp={name}")
    assert made.numbers is not None
    expected = {"dsv3_128gpu": Verdict.OVER, "moe_tiny_cpu": None}.get(name, Verdict.FITS)
    assert made.numbers.memory.verdict is expected


def test_a_cure_is_looked_for_and_not_known_by_heart() -> None:
    """Without host memory for the context there is another one; with very little GPU memory there is none."""
    small = plan("+exp=dsv3_128gpu", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=30")
    hint = next(i.hint for i in small.issues if i.code == "MEMORY_OVER")
    assert "context" not in hint
    assert "per_device_batch_size=4" in hint
    none = plan("+exp=dsv3_128gpu", "env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION=0.3")
    assert "launcher search" in next(i.hint for i in none.issues if i.code == "MEMORY_OVER")


@pytest.mark.parametrize(
    "word",
    ["trainer.per_device_batch_size=1e15", "trainer.per_device_batch_size=0.25", "trainer.max_target_length=0",
     "trainer.gradient_accumulation_steps=0", "moe.ragged_buffer_factor=1e300", "hardware.hbm_bytes=-1", "hardware.peak_fp8=0",
     "hardware.nvlink_bytes_per_s=0", "+model.overrides.base_num_decoder_layers=0", "+model.overrides.base_emb_dim=0",
     "+model.overrides.num_experts=1", "+model.overrides.vocab_size=0", "env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION=x"],
)  # fmt: skip
def test_odd_values_have_a_plan_too(word: str) -> None:
    """A user's slip is an issue or a number, never a traceback or an endless search."""
    made = plan("+exp=dsv3_128gpu", word)
    assert plan_text(made)
    assert numbers_json(made) is None or made.numbers is not None


def test_more_host_memory_than_allowed_is_said() -> None:
    made = plan("+exp=dsv3_128gpu_fits", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=40")
    issue = next(i for i in made.issues if i.code == "HOST_OFFLOAD_OVER")
    assert "46.5 GiB" in issue.message
    assert check_memory.host_limit(case("+exp=dsv3_128gpu_fits")) == 180 * GIB


def test_what_is_not_modelled_has_no_numbers_and_a_reason() -> None:
    made = plan("+exp=dsv3_128gpu", "+maxtext.use_indexer=true")
    assert made.numbers is None
    assert "use_indexer" in made.no_numbers
    assert plan("+exp=dsv3_128gpu", "model.name=gemma3-27b").numbers is None


def test_kept_tensors_of_a_layer_by_hand() -> None:
    """DeepSeek-V3's MoE layer under the article's policy: 74,368 bytes a token."""
    found = case("+exp=dsv3_128gpu")
    widths = activations.widths(found, True)
    assert sum(widths.get(name, 0) for name in activations.places(found)) == 74368


@pytest.mark.parametrize(
    "words",
    [("+exp=dsv3_128gpu_fits",), ("+exp=dsv3_1024gpu",), ("+exp=dsv3_1024gpu", "trainer.per_device_batch_size=8"),
     ("+exp=dsv3_128gpu_fits", "trainer.per_device_batch_size=8")],
)  # fmt: skip
def test_the_largest_factor_is_not_over_and_the_next_one_is(words: tuple[str, ...]) -> None:
    def verdict(factor: float) -> Verdict | None:
        return estimate(*words, f"moe.ragged_buffer_factor={factor}").verdict

    asked = case(*words)
    largest = memory.largest_factor(asked)
    assert largest is not None
    if largest == -1:
        assert verdict(-1) is not Verdict.OVER
    else:
        assert largest >= asked.values.number("ragged_buffer_factor")
        assert verdict(largest) is not Verdict.OVER
        assert verdict(round(largest + 0.01, 2)) is Verdict.OVER
        assert verdict(-1) is Verdict.OVER


@pytest.mark.parametrize(
    "words",
    [("+exp=moe_tiny_cpu",), ("+exp=dsv3_128gpu",), ("+exp=dsv3_1024gpu", "hardware.hbm_bytes=0"),
     ("+exp=dsv3_1024gpu", "moe.te_moe_block=false")],
    ids=["no TE", "over already", "memory not known", "MaxText's own path"],
)  # fmt: skip
def test_where_the_memory_is_not_known_no_factor_is_said_to_be_too_large(words: tuple[str, ...]) -> None:
    assert memory.largest_factor(case(*words)) is None
