"""A trainer for `correctness`: MaxText's lines and metrics of a run whose losses hang on the MoE path; made, and at once.

The exact path's loss falls; another one's is off by the share in $OFF, does not fall with $FLAT, is no number with $NAN.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

lines = (line.partition(":") for line in Path(sys.argv[1]).read_text().splitlines())
keys = {name.strip(): value.strip().strip("\"'") for name, _, value in lines}
keys.update(word.split("=", 1) for word in sys.argv[2:])
is_exact = float(keys.get("capacity_factor", "-1")) < 0
begin = time.time()
file = os.environ.get("M_METRICS_FILE")
for step in range(int(keys["steps"])):
    loss = 7 - step / 20
    if not is_exact:
        loss = 7.0 if os.environ.get("FLAT") else loss * (1 + float(os.environ.get("OFF", "0")))
        loss = float("nan") if os.environ.get("NAN") and step > 3 else loss
    stamp = time.strftime("I%m%d %H:%M:%S.000000 140675135284544 ", time.localtime(begin + step))
    print(
        f"{stamp}metric_logger.py:265] completed step: {step}, seconds: 1.000, TFLOP/s/device: 1.0, "
        f"Tokens/s/device: 64.0, total_weights: 128, loss: {loss:.3f}",
        flush=True,
    )
    if math.isnan(loss) and step == 5:
        time.sleep(2)  # the monitor has all the time to see it
    if file:
        with open(file, "a", encoding="utf-8") as metrics:
            entry = {"step": step, "learning/loss": loss, "learning/raw_grad_norm": 1.0 + step / 100}
            metrics.write(json.dumps(entry) + "\n")
