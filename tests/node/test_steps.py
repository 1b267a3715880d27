"""Step lines of every form, whole and cut: a value is what was printed, or it is missing."""

import math

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node.steps import StepLine, parse_step

NUMBERS = st.floats(0, 1e9).map(lambda value: round(value, 3)) | st.sampled_from([math.inf, math.nan])
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "seconds",
            "live slice count",
            "TFLOP/s/device",
            "Tokens/s/device",
            "total_weights",
            "loss",
            "lm_loss",
            "mtp_loss",
        ]
    ),
    NUMBERS,
    max_size=8,
)
NAMES = {
    "seconds": "seconds",
    "tflops": "TFLOP/s/device",
    "tokens": "Tokens/s/device",
    "weights": "total_weights",
    "loss": "loss",
}
STAMP = "I1129 17:35:53.415048 140675135284544 "


def text_of(step, fields):
    return ", ".join(
        [f"{STAMP}metric_logger.py:265] completed step: {step}", *(f"{n}: {v:.3f}" for n, v in fields.items())]
    )


def same(one, other):
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


@settings(max_examples=200, deadline=None)
@given(step=st.integers(0, 10**7), fields=FIELDS)
def test_every_field_that_is_printed_is_read(step, fields):
    found = parse_step(text_of(step, fields))
    assert found.step == step
    for name, printed in NAMES.items():
        assert same(getattr(found, name), fields.get(printed))
    assert set(found.others) == set(fields) - set(NAMES.values())


@settings(max_examples=300, deadline=None)
@given(
    step=st.integers(0, 10**7),
    fields=FIELDS,
    cut=st.integers(0, 400),
    follows=st.sampled_from(
        [f"{STAMP}train.py:1] text", "Traceback (most recent call last):", "[0] ", "\x00\x00", "]"]
    ),
)
def test_a_cut_line_with_others_words_behind_it_gives_no_wrong_value(step, fields, cut, follows):
    whole = text_of(step, fields)
    found = parse_step(whole[:cut] + follows)
    if cut >= len(whole):
        return
    assert found is None or found.step == step
    for name, printed in NAMES.items():
        value = getattr(found, name) if found is not None else None
        assert value is None or same(value, fields.get(printed))


@settings(max_examples=100, deadline=None)
@given(first=FIELDS, second=FIELDS, cut=st.integers(0, 400))
def test_of_two_reports_in_one_line_the_whole_one_counts(first, second, cut):
    assert repr(parse_step(text_of(7, first)[:cut] + text_of(8, second))) == repr(parse_step(text_of(8, second)))


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_recorded_lines_are_read_to_the_last_field(name):
    steps = [step for step in map(parse_step, recorded.lines(name)) if step is not None]
    assert [step.step for step in steps] == list(range(len(steps)))
    for step in steps:
        assert None not in (step.seconds, step.tflops, step.tokens, step.weights, step.loss)
        assert set(step.others) == {"lm_loss", "perplexity", "moe_lb_loss"}


@pytest.mark.parametrize("line", ["completed step: ", "completed step: x, loss: 1", "steps have been completed).", ""])
def test_no_number_no_step(line):
    assert parse_step(line) is None


def test_a_hidden_profiler_step_has_a_loss_and_no_time():
    found = parse_step("completed profiler activation/deactivation step: 5, total_weights: 8, loss: 9.0")
    assert found == StepLine(5, weights=8.0, loss=9.0)
