"""A trainer that notes when its process started and is done: trainer.module=benchmarks.first_process.

BENCH_FAIL_ATTEMPTS=N makes the first N attempts fail at once. Rank 0 writes Unix seconds to <output>/started-<attempt>, and to
failed-<attempt> before it fails.
"""

import os
import re
import sys
import time
from pathlib import Path

STARTED = time.time()


def main() -> None:
    keys = dict(re.findall(r"^(\w+): *(.+)$", Path(sys.argv[1]).read_text(encoding="utf-8"), re.M))
    keys.update({key: value for key, _, value in (word.partition("=") for word in sys.argv[2:])})
    output, rank = Path(keys["base_output_directory"]), int(os.environ["NODE_RANK"])
    attempt = max(int(entry.name) for entry in (output.parent / "attempts").iterdir())
    output.mkdir(exist_ok=True)
    if rank == 0:
        (output / f"started-{attempt}").write_text(repr(STARTED), encoding="utf-8")
    if attempt <= int(os.environ.get("BENCH_FAIL_ATTEMPTS", "0")) and rank == 0:
        (output / f"failed-{attempt}").write_text(repr(time.time()), encoding="utf-8")
        sys.exit(1)
    for step in range(int(keys["steps"])):
        print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.000, Tokens/s/device: 1.000, loss: 1.000")


if __name__ == "__main__":
    main()
