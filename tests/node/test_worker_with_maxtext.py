"""Real MaxText on the CPU under the worker: two processes, EP 2, stopped by SIGTERM in the middle, resumed, finished."""

import importlib.util
import json
import sys

import pytest

# Model overrides stand on the command line: in maxtext.yml the model's own file would win over them without a word.
MODEL = {
    "model_name": "deepseek3-tiny",
    "override_model_config": True,
    "base_num_decoder_layers": 2,
    "first_num_dense_layers": 1,
    "vocab_size": 512,
}
MAXTEXT_YML = """\
base_config: base.yml
hardware: gpu
dataset_type: synthetic
per_device_batch_size: 1
max_target_length: 64
attention: dot_product
sparse_matmul: false
ici_fsdp_parallelism: 1
ici_expert_parallelism: 2
enable_autocheckpoint: true
save_checkpoint_on_start: false
checkpoint_period: 1000
enable_tensorboard: false
log_config: false
"""
STEPS = 60


@pytest.mark.maxtext
@pytest.mark.skipif(
    importlib.util.find_spec("maxtext") is None, reason="maxtext is not installed: pip install .[local]"
)
def test_sigterm_in_the_middle_then_resume_to_the_end(run, stop_leftovers):
    run.write({"steps": STEPS, "module": "maxtext.trainers.pre_train.train"}, **MODEL)
    (run.path / "bundle" / "maxtext.yml").write_text(MAXTEXT_YML)
    process = run.start(trainer_python=sys.executable)
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 0,", rank=1, seconds=400)
    process.terminate()
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 75, output[-4000:]
    stopped = run.result()
    assert stopped["outcome"] == "preempted"
    assert stopped["last_step"] <= stopped["checkpoint"] < STEPS - 1
    assert stopped["ranks"] == [{"rank": 0, "returncode": 0}, {"rank": 1, "returncode": 0}]

    again = run.worker(attempt=2, trainer_python=sys.executable, timeout=400)
    assert again.returncode == 0, again.stdout[-4000:]
    finished = run.result(2)
    assert (finished["outcome"], finished["last_step"], finished["checkpoint"]) == ("finished", STEPS - 1, STEPS - 1)
    assert finished["first_step"] == stopped["checkpoint"] + 1
    metrics = [json.loads(line) for line in run.log("metrics.jsonl", 2).splitlines()]
    assert [line["step"] for line in metrics] == list(range(finished["first_step"], STEPS))
