"""The stand-in trainer behind a rendered bundle: takes MaxText's keys from maxtext.yml, and its orders from $STANDIN.

`python -m conformance_trainer maxtext.yml KEY=VALUE ...` with STANDIN="mode=die at=4 attempt=1": `attempt=N` limits the
orders to that attempt, so that the next one goes well.
"""

import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path


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
    return given


def meet_the_others(folder, rank, ranks):
    """Returns when all ranks are here, as JAX's start does; without it a fast rank is done before a slow one begins."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(rank)).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < ranks:
        if time.monotonic() > deadline:
            sys.exit("the other ranks did not come")
        time.sleep(0.01)


keys = read_yml(sys.argv[1])
keys.update(word.split("=", 1) for word in sys.argv[2:])
keys["autocheckpoint"] = keys.get("enable_autocheckpoint", "false")
keys.update(orders())
sys.argv[2:] = [f"{key}={value}" for key, value in keys.items()]
print("I1129 17:35:50.000001 140675135284544 maxtext_utils.py:1] Num_devices: 2, shape (1, 2)", flush=True)
if keys.get("environ"):
    Path(keys["environ"]).write_bytes(Path("/proc/self/environ").read_bytes())

import standin_trainer as trainer  # noqa: E402, it reads sys.argv

trainer.before_training()
first = trainer.first_step()
trainer.first_step = lambda: first
coordinator = f"{os.environ['JAX_COORDINATOR_IP']}-{os.environ['JAX_COORDINATOR_PORT']}"
meet_the_others(Path(keys["base_output_directory"]) / "met" / coordinator, trainer.RANK, int(os.environ["NNODES"]))
signal.signal(signal.SIGTERM, trainer.catch)
trainer.loop()
