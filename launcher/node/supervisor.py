"""Entry point of the supervisor: `python3 BUNDLE/node/supervisor.py --bundle DIR --run DIR --attempt N`, in a batch job;
with `--here PYTHON`, on one machine without SLURM.

Like worker.py, it imports the folder that it lies in as a package, so that a bundle needs no installed one.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    sys.dont_write_bytecode = True  # the bundle's manifest lists every file of it
    sys.path[0] = str(folder.parent)
    sys.exit(importlib.import_module(f"{folder.name}.supervise").main(sys.argv[1:]))
