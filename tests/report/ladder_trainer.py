"""A trainer whose steps take made times: `python -m ladder_trainer YML k=v ...` writes MaxText's lines with made stamps, at once.

A step takes 2 s, give or take 2 %, half of it where every variable that $TOGETHER names is `b`, and a quarter less for a small
learning rate. Repeats differ by the noise. Where every variable that $DEADLY names is `b`, it dies.
"""

import os
import random
import re
import sys
from pathlib import Path


def are_b(names):
    return bool(names) and all(os.environ.get(name) == "b" for name in names.split(","))


def stamp(seconds):
    minutes, seconds = divmod(seconds, 60)
    return f"I1129 {16 + int(minutes) // 60:02}:{int(minutes) % 60:02}:{seconds:09.6f} 140675135284544 "


lines = (line.partition(":") for line in Path(sys.argv[1]).read_text().splitlines())
keys = {name.strip(): value.strip().strip("\"'") for name, _, value in lines}
keys.update(word.split("=", 1) for word in sys.argv[2:])
seed = sorted((name, value) for name, value in os.environ.items() if name.startswith("S_"))
repeat = re.search(r"_(\d)-", keys.get("run_name", ""))  # of a ladder's second round on
draw = random.Random(repr((seed, repeat[1]) if repeat else seed))
took = 2.0
if are_b(os.environ.get("TOGETHER")):
    took *= 0.5
if float(keys.get("learning_rate", "1")) < 1e-3:
    took *= 0.75
now = 0.0
for step in range(int(keys["steps"])):
    if step == 5 and are_b(os.environ.get("DEADLY")):
        raise ValueError("one of these settings is deadly")
    now += took * draw.gauss(1, 0.02)
    print(
        f"{stamp(now)}metric_logger.py:265] completed step: {step}, seconds: {took:.3f}, TFLOP/s/device: 1.0, "
        f"Tokens/s/device: 64.0, total_weights: 128, loss: {7 - step / 100:.3f}",
        flush=True,
    )
