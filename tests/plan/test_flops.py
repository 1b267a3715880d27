"""FLOP a token, against MaxText's own function and against arithmetic done by hand."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config import maxtext_schema
from launcher.plan import flops, params
from launcher.plan.model import ModelShape, Values, shape

SCHEMA = maxtext_schema.load("0.2.5")
NINE = {
    "deepseek3-671b": 4096, "kimi-k2-1t": 4096, "mixtral-8x7b": 4096, "qwen3-235b-a22b": 4096, "qwen3-30b-a3b": 4096,
    "gpt-oss-120b": 4096, "llama3-8b": 8192, "llama3-70b": 8192, "llama3.1-405b": 8192,
}  # fmt: skip
MORE = (
    "deepseek3-671b:2048:mtp_num_layers=1",
    "deepseek2-16b:4096",
    "llama2-7b:4096",
    "gpt-oss-20b:64",
    "qwen3-8b:1024",
)


def model(name: str, **keys: object) -> ModelShape:
    return shape(Values(keys, name, SCHEMA))


@pytest.fixture(scope="module")
def maxtexts() -> dict[str, list[float]]:
    if importlib.util.find_spec("maxtext") is None:
        pytest.skip("MaxText is not installed")
    words = [*(f"{name}:{sequence}" for name, sequence in NINE.items()), *MORE]
    script = Path(__file__).with_name("maxtext_flops.py")
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FLOPS ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, list[float]] = json.loads(lines[0].removeprefix("FLOPS "))
    return found


@pytest.mark.maxtext
def test_nine_models_and_more_count_as_maxtext_does(maxtexts: dict[str, list[float]]) -> None:
    for word, (total, weights, core) in maxtexts.items():
        name, sequence, *keys = word.split(":")
        asked = {key: int(value) for key, _, value in (k.partition("=") for k in keys)}
        found = flops.per_token(model(name, **asked), int(sequence))
        for ours, theirs in ((found.total, total), (found.weights, weights), (found.core, core)):
            assert ours * int(sequence) == pytest.approx(theirs * 1e12, rel=1e-5), word
    assert {word.split(":")[0] for word in maxtexts} >= set(NINE)


def test_deepseek_by_class_by_hand() -> None:
    found = flops.per_token(model("deepseek3-671b"), 4096)
    experts = 6 * 3 * 7168 * 2048 * 8 * 58
    assert found.experts == experts
    assert found.shared == experts / 8
    assert found.head == 6 * 7168 * 129280
    # Half of 4,096 tokens, 128 heads of 192 + 128, 61 layers.
    assert found.core == 6 * 2048 * 128 * 320 * 61
    assert found.total / 1e9 == pytest.approx(250.450, abs=5e-4)


def test_a_window_longer_than_the_sequence_is_no_window() -> None:
    short = flops.seen(model("gpt-oss-120b"), 64)
    assert short == 32
    assert flops.seen(model("gpt-oss-120b"), 4096) < 4096 / 2


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("deepseek3-671b", 671.03, 37.55), ("kimi-k2-1t", 1026.4, 32.9), ("mixtral-8x7b", 46.70, 12.88),
     ("qwen3-235b-a22b", 235.09, 22.19), ("llama3-70b", 70.55, 70.55)],
)  # fmt: skip
def test_parameters_are_the_published_ones(name: str, billions: float, active: float) -> None:
    """Model cards: 671B/37B, 1T/32B, 46.7B/12.9B, 235B/22B, 70.6B."""
    found = model(name)
    table = params.sizes(found)
    skipped = (
        {"query", "key and value", "query and key norm"}
        if found.mla
        else {"wq_a", "q_norm", "wq_b", "wkv_a", "kv_norm", "wkv_b"}
    )
    if not name.startswith("qwen3"):
        skipped |= {"query and key norm"}
    total = sum(elements * layers for weight, (elements, layers) in table.items() if weight not in skipped) + found.emb
    assert total / 1e9 == pytest.approx(billions, rel=1e-3)
    routed = sum(table[w][0] * table[w][1] for w in ("experts wi", "experts wo")) if found.moe else 0
    idle = routed * (1 - found.experts_per_token / found.experts) if found.moe else 0
    assert (total - idle) / 1e9 == pytest.approx(active, rel=3e-3)
