"""A trainer that says and does what maxtext 0.2.5 says and does, in milliseconds: `python -m standin_trainer YML k=v ...`.

The texts are MaxText's own (metric_logger.py, train.py, checkpointing.py, pyconfig.py). What it does is told by keys:
mode=finish|die|hang|overflow|config|deaf|early|exhausted|hang_at_exit|show|grandchild|bytes, rank=K (whom the mode concerns),
at=STEP, autocheckpoint=true|false, pause=SECONDS a step, until=FILE before the first step, devices=N,
kernel=NAME (compiled as NCCL EP does, unless it is there), plus MaxText's steps, checkpoint_period, run_name, base_output_directory.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

KEYS = {
    key: json.loads(value) if value.startswith('"') else value
    for key, value in (word.split("=", 1) for word in sys.argv[2:])
}
RANK = int(os.environ.get("NODE_RANK", os.environ.get("SLURM_PROCID", "0")))
MODE = KEYS.get("mode", "finish")
STEPS = int(KEYS["steps"])
AT = int(KEYS.get("at", "-1"))
CONCERNED = KEYS.get("rank", str(RANK)) == str(RANK)
# The sizes of shared/data/recorded/h200x2_te_overflow_rank0.log: 98304 rows at factor 1.
FACTOR = float(KEYS.get("ragged_buffer_factor", "1.0"))
DEMAND = int(KEYS.get("demand", "101120"))
CAPACITY = 128 * math.ceil(FACTOR * 98304 / 128) if FACTOR > 0 else 200704
OVERFLOW = (
    "TE MoE receive capacity overflow at training step {at} (detected at the 4-step check ending at step {end}): observed "
    f"padded receive demand {DEMAND} exceeds recv_capacity_per_rank {CAPACITY} (ragged_buffer_factor={FACTOR}). The "
    "optimizer update was skipped; increase ragged_buffer_factor, or set it to -1 to reserve worst-case dropless capacity."
)
caught = []


def catch(number, frame):
    caught.append(number)


def stamp(level="I"):
    """What absl puts before a line: the time now, or events that the launcher times itself would stand in a wrong order."""
    return datetime.now().strftime(f"{level}%m%d %H:%M:%S.%f 140675135284544 ")


def step_line(step):
    print(
        f"{stamp()}metric_logger.py:265] completed step: {step}, seconds: 0.142, TFLOP/s/device: 324.179, Tokens/s/device: "
        f"115047.293, total_weights: 32768, loss: {10.0 - step / 100:.3f}, lm_loss: 10.825, perplexity: 50283.094, "
        "moe_lb_loss: 0.000000"
    )


def folder():
    return Path(KEYS["base_output_directory"]) / KEYS["run_name"] / "checkpoints"


def save(step):
    if RANK == 0:
        unfinished = folder() / f"{step}.orbax-checkpoint-tmp"
        unfinished.mkdir(parents=True)
        (unfinished / "_CHECKPOINT_METADATA").write_text("{}")
        (unfinished / "commit_success.txt").write_text("")
        unfinished.rename(folder() / str(step))


def first_step():
    done = [int(entry.name) for entry in folder().iterdir() if entry.name.isdigit()] if folder().is_dir() else []
    if done and max(done) >= STEPS - 1:
        raise RuntimeError(
            f"Requested training up to step {STEPS}, but a checkpoint already exists at step {max(done)} (which means "
            f"{max(done) + 1} steps have been completed). Did you mean to continue training past step {max(done) + 1}"
        )
    return max(done) + 1 if done else 0


def compile_kernel(place):
    """As NCCL EP does in the first step, unless its folder holds that kernel."""
    if (place / "kernel.cubin").exists():
        print("kernel found")
        return
    place.mkdir()
    for name, text in (("compile.lock", ""), ("kernel.cu", "//"), ("kernel.cubin", "code"), ("metadata.json", "{}")):
        (place / name).write_text(text)
    print("kernel compiled")


def before_training():
    if "kernel" in KEYS and RANK == 0:
        compile_kernel(Path(os.environ["NCCL_EP_JIT_CACHE_DIR"]) / KEYS["kernel"])
    if "devices" in KEYS:
        print(f"{stamp()}maxtext_utils.py:1] Num_devices: {KEYS['devices']}, shape (1, {KEYS['devices']})", flush=True)
    if MODE == "early" and CONCERNED:
        print("importing", flush=True)
        time.sleep(600)
    if MODE == "config":
        print(f"{stamp('E')}pyconfig.py:392] {'=' * 80}")
        print("MAXTEXT CONFIG ERROR: 'pgle' not in 'emb_dim', 'mlp_dim'")
        sys.exit(2)
    if MODE == "show":
        names = KEYS["names"].split(",")
        print("SHOW " + json.dumps({name: os.environ.get(name) for name in names}))
        print("ARGV " + json.dumps(sys.argv[1:]))
    if MODE == "bytes":
        sys.stdout.flush()
        os.write(1, b"caf\xe9 \xff\xfe\r\nhalf ")
        time.sleep(0.3)
        os.write(1, b"a line\n")
    if MODE == "grandchild":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"GRANDCHILD {child.pid}")


def meet():
    """Waits for this node's other ranks, as jax.distributed.initialize does."""
    together = int(KEYS["together"])
    meeting = Path(KEYS["base_output_directory"]) / f"meeting-{os.environ['JAX_COORDINATOR_PORT']}-{RANK // together}"
    meeting.mkdir(parents=True, exist_ok=True)
    start = first_step()
    (meeting / str(RANK)).touch()
    while len(list(meeting.iterdir())) < together:
        time.sleep(0.005)
    return start


def wait_in_a_driver():
    time.sleep(600)


def wait_for_the_other_ranks():
    time.sleep(600)


def loop():
    begin = meet()
    while "until" in KEYS and not Path(KEYS["until"]).exists():
        time.sleep(0.005)
    for step in range(begin, STEPS):
        if KEYS.get("pause"):
            time.sleep(float(KEYS["pause"]))
        if MODE == "die" and CONCERNED and step == AT:
            print("jax.errors.JaxRuntimeError: INTERNAL: this line is no traceback")
            raise ValueError("NCCL operation failed: unhandled system error")
        if MODE == "die" and not CONCERNED and step == AT:
            time.sleep(600)  # a collective that waits for the dead rank
        if MODE == "hang" and step == AT:
            sys.stdout.flush()
            (wait_in_a_driver if CONCERNED else wait_for_the_other_ranks)()
        if MODE == "overflow" and step == AT + 3 and (DEMAND > CAPACITY or KEYS.get("always")):
            print(f"{stamp('E')}train.py:1439] {OVERFLOW.format(at=AT, end=step)}")
            step_line(step)
            raise RuntimeError(OVERFLOW.format(at=AT, end=step))
        if MODE == "exhausted" and step == AT:
            print(
                f"{stamp()}train.py:1454] Training stopped: You may have run out of training data. Received StopIteration"
            )
            return
        if caught and MODE != "deaf":
            if KEYS.get("autocheckpoint") == "true":
                save(step)
            print(f"{stamp()}train.py:1454] Training stopped: Job received termination signal (SIGTERM).")
            return
        if step and step % int(KEYS.get("checkpoint_period", "1000000")) == 0:
            save(step)
        step_line(step)
    if "checkpoint_period" in KEYS and not (folder() / str(STEPS - 1)).exists():
        save(STEPS - 1)


if __name__ == "__main__":
    before_training()
    signal.signal(signal.SIGTERM, catch)
    loop()
    if MODE == "hang_at_exit" and CONCERNED:
        sys.stdout.flush()
        time.sleep(600)
    if MODE == "bytes":
        sys.stdout.flush()
        os.write(1, b"no newline at the end")
