"""The stand-in trainer behind a rendered bundle: takes MaxText's keys from maxtext.yml, and its orders from $STANDIN.

`python -m conformance_trainer maxtext.yml KEY=VALUE ...` with STANDIN="mode=die at=4 attempt=1": `attempt=N` limits the
orders to that attempt, so that the next one goes well. `hold=K` stops before step K until a stop signal comes (a deaf
trainer does not hear it) or the file <run>/output/go is there: so a test never races with the trainer.
"""

import os
import re
import runpy
import shlex
import signal
import sys
import time
from pathlib import Path

HOLDING = "0.001"


def read_yml(path):
    found = {}
    for line in Path(path).read_text().splitlines():
        match = re.fullmatch(r"(\w+): *(.+)", line)
        if match:
            found[match.group(1)] = match.group(2).strip("\"'")
    return found


def orders():
    given = dict(word.split("=", 1) for word in shlex.split(os.environ.get("STANDIN", "")))
    attempt = given.pop("attempt", None)
    run = Path(keys["base_output_directory"]).parent
    mine = max(int(entry.name) for entry in (run / "attempts").iterdir())
    if attempt is not None and mine != int(attempt):
        return {key: value for key, value in given.items() if key == "pause"}
    return {"pause": HOLDING, **given} if "hold" in given else given


def hold_before(step, deaf):
    """Makes the stand-in's pause before a step a wait, from the given step on."""
    sleep, install = time.sleep, signal.signal
    signals, pauses = [], []

    def noted(number, handler):
        return install(number, lambda *words: (signals.append(number), handler(*words)))

    def wait(seconds):
        if seconds == float(keys["pause"]):
            pauses.append(seconds)
            while len(pauses) > step and (deaf or not signals) and not go.exists():
                sleep(0.01)
        sleep(seconds)

    go = Path(keys["base_output_directory"]) / "go"
    time.sleep, signal.signal = wait, noted


keys = read_yml(sys.argv[1])
keys.update(word.split("=", 1) for word in sys.argv[2:])
keys["autocheckpoint"] = keys.get("enable_autocheckpoint", "false")
keys.update(orders())
keys["devices"] = "2"
keys["together"] = os.environ["NNODES"]
sys.argv[2:] = [f"{key}={value}" for key, value in keys.items()]
if keys.get("environ"):
    Path(keys["environ"]).write_bytes(Path("/proc/self/environ").read_bytes())
if "hold" in keys:
    hold_before(int(keys["hold"]), keys.get("mode") == "deaf")
runpy.run_module("standin_trainer", run_name="__main__")
