"""Real logs, read back: the step lines and what the last words of a rank mean."""

from pathlib import Path

import pytest

from launcher.node.observe import Observed
from launcher.node.steps import parse_step

DATA = Path(__file__).parent / "data"


def observed(name):
    facts = Observed()
    for line in (DATA / name).read_text().splitlines():
        facts.feed(line)
    return facts


def lines_fed(*lines):
    facts = Observed()
    for line in lines:
        facts.feed(line)
    return facts


def test_step_line_of_gb200_style_log():
    line = next(line for line in (DATA / "h200_overflow.log").read_text().splitlines() if "completed step: 1," in line)
    step = parse_step(line)
    assert (step.step, step.seconds, step.tflops, step.tokens) == (1, 0.461, 100.176, 35551.467)
    assert (step.weights, step.loss) == (32768.0, 10.891)
    assert step.others == {"lm_loss": 10.891, "perplexity": 53665.207, "moe_lb_loss": 0.0}


@pytest.mark.parametrize(
    ("text", "step", "figures", "others"),
    [
        (
            "completed step: 7, seconds: 0.5, TFLOP/s/device: 1.5, Tokens/s/device: 2.5, loss: 6.5",
            7,
            (0.5, 1.5, 6.5),
            {},
        ),
        (
            "[Rampup Batch Size Phase], completed step: 0, seconds: 1.0, total_weights: 8, loss: 9.0",
            0,
            (1.0, None, 9.0),
            {},
        ),
        ("completed profiler activation/deactivation step: 5, total_weights: 8, loss: 9.0", 5, (None, None, 9.0), {}),
        (
            "completed step: 3, seconds: 0.1, live slice count: 2, TFLOP/s/device: 1.0, Tokens/s/device: 2.0, loss: nan, "
            "moe_max_load_ratio: 1.25, main_model_loss: 2.5, mtp_loss: 1e-3, indexer_loss: 2.5e-05",
            3,
            (0.1, 1.0, float("nan")),
            {
                "live slice count": 2.0,
                "moe_max_load_ratio": 1.25,
                "main_model_loss": 2.5,
                "mtp_loss": 0.001,
                "indexer_loss": 2.5e-05,
            },
        ),
    ],
)
def test_step_line_variants(text, step, figures, others):
    line = parse_step(text)
    assert line.step == step
    assert (line.seconds, line.tflops, line.loss) == pytest.approx(figures, nan_ok=True)
    assert line.others == others


@pytest.mark.parametrize(
    "text",
    [
        "Completed eval after train step 3, loss=6.5, perplexity=1.0, total_weights=8, avg_z_loss=0.0",
        "Completed eval step: 3, seconds: 0.5, running loss=6.5",
        "Step 3: MoE ragged buffer overflow detected in 2 layer(s); in-layer dropless fallback was used",
        "restoring from this run's directory step 9",
    ],
)
def test_other_lines_are_no_steps(text):
    assert parse_step(text) is None


def test_overflow_of_the_h200s():
    facts = observed("h200_overflow.log")
    overflow = facts.overflow
    assert (overflow.step, overflow.detected) == (0, 3)
    assert (overflow.demand, overflow.capacity, overflow.factor) == (101120, 98304, 1.0)
    assert (facts.first_step, facts.last_step) == (0, 3)
    assert facts.error.startswith("RuntimeError: TE MoE receive capacity overflow at training step 0"), (
        "the root of the chain, not contextlib's complaint about it"
    )


def test_segmentation_fault_names_itself():
    assert observed("h200_segfault.log").error == "Fatal Python error: Segmentation fault"


def test_poisoned_jit_cache_shows_the_nccl_error():
    assert "ep_backend.cpp:666 in function combine: NCCL Error" in observed("h200_jit_poisoned.log").error


def test_without_te_the_failed_import_does_not_hide_the_error():
    facts = observed("cpu_layers.log")
    assert facts.error == "TypeError: broadcast_in_dim shape must have every element be nonnegative, got (-1,)."
    assert facts.refusal is None


@pytest.mark.parametrize(
    "failed",
    [
        "ModuleNotFoundError: No module named 'transformer_engine'",
        "RuntimeError: Found empty `transformer-engine` meta package installed. Install `transformer-engine` with",
        "OSError: libcublas.so.13: cannot open shared object file: No such file or directory",
        "ImportError: cannot import name 'MeshResource' from 'transformer_engine.jax.sharding'",
    ],
)
def test_whatever_keeps_te_from_being_imported_hides_no_error(failed):
    """MaxText tries the import around the whole training and goes on without it."""
    tried = [
        "Traceback (most recent call last):",
        '  File "SITE/maxtext/utils/max_utils.py", line 1257, in transformer_engine_context',
        "    from transformer_engine.jax.sharding import global_shard_guard, MeshResource  # pylint: disable",
        '  File "SITE/transformer_engine/__init__.py", line 16, in <module>',
        failed,
        "",
        "During handling of the above exception, another exception occurred:",
    ]
    real = ["Traceback (most recent call last):", '  File "SITE/train.py", line 1, in main', "ValueError: the real one"]
    cut = lines_fed("hello", *tried, *real[:-1])
    assert cut.failure is None, "where the lines end before the real one, it is not known"
    assert lines_fed(*tried, *real).error == "ValueError: the real one"
    assert (
        lines_fed(*tried, *real, tried[-1], *real[:-1], "KeyError: 'in the cleanup'").error
        == "ValueError: the real one"
    )
    assert lines_fed(*tried[:5]).error == failed, "alone it is the failure"


def test_the_first_of_a_chain_is_the_failure():
    facts = lines_fed(
        "Traceback (most recent call last):",
        '  File "SITE/train.py", line 1, in main',
        "ValueError: the real one",
        "During handling of the above exception, another exception occurred:",
    )
    assert facts.failure == "ValueError: the real one"


def test_finished_log():
    facts = observed("h200_finished.log")
    assert (facts.first_step, facts.last_step) == (0, 13)


def test_signal_stop():
    facts = observed("cpu_preempted.log")
    assert facts.stopped == "Job received termination signal (SIGTERM)."
    assert facts.last_step == 18


def test_finished_run_started_again():
    assert observed("cpu_already_done.log").done_up_to == 20


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("cpu_unknown_key.log", "this MaxText has no key 'pgle'"),
        ("cpu_wrong_type.log", "1 validation error for MaxTextConfig / steps / Input should be a valid integer"),
        ("cpu_unknown_model.log", "1 validation error for MaxTextConfig / model_name / Input should be 'default'"),
        ("cpu_unknown_flag.log", "Unknown flag in XLA_FLAGS: --xla_gpu_no_such_flag"),
        ("cpu_mesh.log", "AssertionError: Number of devices per slice 2 does not match the product of the ICI"),
    ],
)
def test_refusals(name, start):
    facts = observed(name)
    assert start in facts.refusal
    assert facts.first_step is None


def test_a_heartbeat_death_shows_the_fatal_line():
    facts = lines_fed("F1129 16:10:00.000000   77 client.h:86] Terminating process because the JAX distributed service")
    assert facts.error == "client.h:86] Terminating process because the JAX distributed service"


def test_the_last_line_is_better_than_nothing():
    assert lines_fed("hello", "Killed", "").error == "Killed"
    assert Observed().error is None


def test_memory_stays_bounded():
    facts = lines_fed(
        "E1129 17:35:54.037729 1 a.py:1] " + "x" * 100_000, "Traceback (most recent call last):", "E: " + "y" * 9999
    )
    assert len(facts.error) <= 600
