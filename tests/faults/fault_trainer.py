"""A trainer that fails as it is told, in maxtext 0.2.5's own words: `python -m fault_trainer maxtext.yml KEY=VALUE ...`.

$FAULTS names a JSON file: {"every": [DEED, ...], "attempts": [[DEED, ...], ...]}, the deeds of every attempt and those of the
first, second, ... alone. A deed is {"do": a function below, "at": when, "rank": K or null for all} and what the function
takes; when: "start", "compiled", a step, "save8" (within that checkpoint, on rank 0), or "end".
Like MaxText it saves before it tells of a step, tells of a step when the next one is done, and writes metrics.jsonl on rank 0.
"""

import json
import math
import os
import re
import signal
import sys
import time
from pathlib import Path

CHECK = 4  # te_ep_overflow_check_every_n_steps
ROWS = 98304  # of a receive buffer at factor 1, as in data/recorded/h200x2_te_overflow_rank0.log
OVERFLOW = (
    "TE MoE receive capacity overflow at training step {at} (detected at the 4-step check ending at step {end}): observed "
    "padded receive demand {demand} exceeds recv_capacity_per_rank {capacity} (ragged_buffer_factor={factor}). The "
    "optimizer update was skipped; increase ragged_buffer_factor, or set it to -1 to reserve worst-case dropless capacity."
)
DIED = (
    "Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another "
    "task died; see the other task logs for more details."
)
FORMS = {
    "new": (
        "completed step: {step}, seconds: 0.142, TFLOP/s/device: 324.179, Tokens/s/device: 115047.293, total_weights: 32768, "
        "loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: 50283.094, moe_lb_loss: 0.000000"
    ),
    "old": "completed step: {step}, seconds: 0.142, TFLOP/s/device: 324.179, Tokens/s/device: 115047.293, total_weights: 32768, loss: {loss:.3f}",
    "rampup": "[Rampup Batch Size Phase], completed step: {step}, seconds: 0.142, total_weights: 32768, loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: 5.094",
    "hidden": "completed profiler activation/deactivation step: {step}, total_weights: 32768, loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: 5.094",
}
caught = []


def keys_given():
    """maxtext.yml's keys, and the command line's over them."""
    found = dict(re.findall(r"(?m)^(\w+): *\"?([^\"\n]*)\"?$", Path(sys.argv[1]).read_text()))
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        found[key] = json.loads(value) if value.startswith('"') else value
    return found


KEYS = keys_given()
RANK, RANKS = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
STEPS, PERIOD = int(KEYS["steps"]), int(KEYS["checkpoint_period"])
OUTPUT = Path(KEYS["base_output_directory"])
CHECKPOINTS = OUTPUT / KEYS["run_name"] / "checkpoints"
METRICS = os.environ.get("M_METRICS_FILE")
FACTOR = float(KEYS.get("ragged_buffer_factor", "1.0"))
CAPACITY = 128 * math.ceil(FACTOR * ROWS / 128) if FACTOR > 0 else 2 * ROWS + 4096
ATTEMPT = max(int(entry.name) for entry in (OUTPUT.parent / "attempts").iterdir())
MEETING = OUTPUT / f"meeting{ATTEMPT}"


def log(text, where="metric_logger.py:265", level="I"):
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
    print(f"{level}{stamp} 140675135284544 {where}] {text}", flush=True)


class World:
    """What the deeds change: this step's loss, gradient norm and MoE demand, the form of its line, the pause before it."""

    def __init__(self):
        self.loss, self.grad, self.demand, self.form, self.pause = {}, {}, {}, "new", 0.0
        self.ratio = {}
        self.deaf = False


world = World()


# ---- deeds: each takes what its object holds besides do, at and rank


def say(text):
    print(text, flush=True)


def raw(data):
    sys.stdout.flush()
    os.write(1, bytes.fromhex(data))


def flood(megabytes):
    for _ in range(megabytes):
        os.write(1, b"x" * (1 << 20))
    os.write(1, b"\n")


def leave(code):
    sys.stdout.flush()
    leave_the_others(code)
    os._exit(code)


def fail(text):
    leave_the_others(1)
    raise RuntimeError(text)


def kill(name, whom="self"):
    """whom: this rank; its worker; or the worker's own parent, the run's supervisor where target=local."""
    sys.stdout.flush()
    if whom == "self":
        leave_the_others(1)
    parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill({"self": os.getpid(), "worker": os.getppid(), "supervisor": int(parent)}[whom], getattr(signal, name))
    if name == "SIGKILL":
        time.sleep(600)


def hang(seconds=600):
    """Neither steps nor answers: a collective that waits for ever. SIGTERM is caught, and heard only between steps."""
    sys.stdout.flush()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def mortal():
    """MaxText does not hear SIGTERM yet: it dies of it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pause(seconds):
    world.pause = seconds


def loss(values):
    world.loss = {int(step): float(value) for step, value in values.items()}


def grad(values):
    world.grad = {int(step): float(value) for step, value in values.items()}


def ratio(values):
    world.ratio = {int(step): float(value) for step, value in values.items()}


def demand(rows):
    world.demand = {int(step): int(value) for step, value in rows.items()}


def form(name):
    world.form = name


def deaf():
    world.deaf = True


def unfinished(step):
    """What a save leaves that was cut off."""
    (CHECKPOINTS / f"{step}.orbax-checkpoint-tmp" / "items").mkdir(parents=True, exist_ok=True)


def uncommitted(step):
    """A checkpoint without its commit: on a file system where renaming is not atomic."""
    (CHECKPOINTS / str(step) / "items").mkdir(parents=True, exist_ok=True)


def stray(name):
    """Something of nobody's in the folder of checkpoints."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    (CHECKPOINTS / name).write_text("?")


def clobber():
    """The folder of checkpoints is no folder."""
    CHECKPOINTS.parent.mkdir(parents=True, exist_ok=True)
    CHECKPOINTS.write_text("")


def without(step):
    """A checkpoint goes: a filer lost it, or somebody cleaned up."""
    (CHECKPOINTS / str(step)).rename(CHECKPOINTS.with_name(f"lost-{step}"))


# ---- the trainer


def orders():
    given = json.loads(Path(os.environ["FAULTS"]).read_text())
    own = given["attempts"][ATTEMPT - 1] if len(given["attempts"]) >= ATTEMPT else []
    return [deed for deed in [*given["every"], *own] if deed["rank"] in (None, RANK)]


def act(when):
    for deed in DEEDS:
        if deed["at"] == when:
            globals()[deed["do"]](**{key: value for key, value in deed.items() if key not in ("do", "at", "rank")})


def leave_the_others(code):
    """JAX's coordinator ends the other ranks when one dies (seen: 'another task died', SIGABRT)."""
    MEETING.mkdir(parents=True, exist_ok=True)
    (MEETING / "dead").write_text(f"{RANK}")


def look_at_the_others():
    """A dead rank ends the others, some time later."""
    dead = MEETING / "dead"
    if dead.exists() and dead.read_text() != str(RANK):
        time.sleep(0.5)
        log(DIED, "client.h:86", "F")
        sys.stdout.flush()
        os._exit(134)


def together(name):
    """Waits for all ranks, as a collective does."""
    MEETING.mkdir(parents=True, exist_ok=True)
    (MEETING / f"{name}.{RANK}").touch()
    while not all((MEETING / f"{name}.{rank}").exists() for rank in range(RANKS)):
        look_at_the_others()
        time.sleep(0.002)


def committed():
    entries = CHECKPOINTS.iterdir() if CHECKPOINTS.is_dir() else ()
    return [int(entry.name) for entry in entries if entry.name.isdigit() and (entry / "commit_success.txt").exists()]


def save(step):
    together(f"save{step}")
    if RANK == 0 and not (CHECKPOINTS / str(step)).exists():
        temporary = CHECKPOINTS / f"{step}.orbax-checkpoint-tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        act(f"save{step}")
        (temporary / "commit_success.txt").write_text("")
        temporary.rename(CHECKPOINTS / str(step))
    log(f"Started an asynchronous checkpoint save for step {step}", "checkpointing.py:795")
    log(f"Finished saving checkpoint (finalized tmp dir) to `{CHECKPOINTS}/{step}`", "atomicity.py:799")


def tell(step):
    """One step's line and metrics, and MaxText's own end at a loss that is no number."""
    value, norm = world.loss.get(step, 10.0 - step / 100), world.grad.get(step, 1.0 - step / 1000)
    rows = world.demand.get(step, 90112)
    line = FORMS[world.form].format(step=step, loss=value)
    if world.ratio:
        line += f", moe_max_load_ratio: {world.ratio.get(step, 1.1):.4f}, moe_max_load_ratio_mean: 1.0500"
    log(line)
    if METRICS:
        entry = {"learning/loss": value, "learning/grad_norm": norm, "learning/current_learning_rate": 3e-5}
        entry |= {"perf/step_time_seconds": 0.142, "perf/per_device_tflops_per_sec": 324.179, "step": float(step)}
        entry |= {"learning/te_moe_capacity_overflow": float(rows > CAPACITY), "run_name": KEYS["run_name"]}
        entry |= {"learning/te_moe_max_total_recv_tokens": float(rows)}
        entry |= {"learning/te_moe_recv_capacity_per_rank": float(CAPACITY)}
        if world.ratio:
            entry |= {"learning/moe_max_load_ratio": world.ratio.get(step, 1.1)}
        with open(METRICS, "a" if step else "w", encoding="utf8") as file:
            file.write(json.dumps(entry) + "\n")
    for bad, name in ((math.isnan(value), "nan"), (math.isinf(value), "inf")):
        if bad and KEYS.get(f"abort_on_{name}_loss", "true").lower() == "true":
            log(f"Aborting training due to {'NaN' if name == 'nan' else 'Inf'} loss.", "metric_logger.py:349")
            sys.stdout.flush()
            os._exit(1)


def check_overflow(step, start):
    """MaxText's check of the steps since the last one, and at the end."""
    since = (step - start) % CHECK
    if since != CHECK - 1 and step != STEPS - 1:
        return
    window = range(step - since, step + 1)
    over = [past for past in window if world.demand.get(past, 0) > CAPACITY]
    if over:
        worst = max(world.demand[past] for past in over)
        text = OVERFLOW.format(at=over[0], end=step, demand=worst, capacity=CAPACITY, factor=FACTOR)
        log(text, "train.py:1439", "E")
        tell(step)
        raise RuntimeError(text)


def main():
    signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    together("ready")
    act("start")
    together("start")
    log(f"Num_devices: {RANKS}, shape (1, {RANKS})", "maxtext_utils.py:1")
    sizes = f"world={RANKS} rank={RANK} ep=2 num_experts=64 max_tokens_per_rank=16384 recv_capacity_per_rank={CAPACITY}"
    log(f"Bootstrapping TE MoE EP: {sizes} hidden_dim=2048 recv_capacity_factor={FACTOR} drop_on_overflow=True")
    done = committed()
    if done and max(done) >= STEPS - 1:
        raise RuntimeError(
            f"Requested training up to step {STEPS}, but a checkpoint already exists at step {max(done)} (which means "
            f"{max(done) + 1} steps have been completed). Did you mean to continue training past step {max(done) + 1}"
        )
    text = (
        f"restoring from this run's directory step {max(done)}"
        if done
        else "No existing checkpoints found, not restoring checkpoint."
    )
    log(text, "checkpointing.py:502")
    act("compiled")
    log("Total estimated memory size: 1.2 GB, estimated output size: 0.4 GB", "max_utils.py:900")
    start = max(done) + 1 if done else 0
    for step in range(start, STEPS):
        together(f"step{step}")
        act(step)
        time.sleep(world.pause)
        look_at_the_others()
        if caught and not world.deaf:
            # MaxText's sync point: all ranks leave at the same step.
            (MEETING / "stop").touch()
        if step and step % PERIOD == 0:
            save(step)
        together(f"done{step}")
        if (MEETING / "stop").exists():
            save(step)
            log("Training stopped: Job received termination signal (SIGTERM).", "train.py:1454")
            if step > start:
                tell(step - 1)
            return
        if step > start:
            tell(step - 1)
        check_overflow(step, start)
    if start < STEPS:
        tell(STEPS - 1)
    if not (CHECKPOINTS / str(STEPS - 1)).exists():
        save(STEPS - 1)
    act("end")


DEEDS = orders()

if __name__ == "__main__":
    main()
