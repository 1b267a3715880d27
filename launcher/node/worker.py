"""Entry point of the worker: `python3 BUNDLE/node/worker.py --bundle DIR --run DIR --attempt N`.

A bundle holds this folder with no installed package around it. So that the modules beside this one import each other
in the same way in both places, the folder is imported as a package under its own name.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    sys.dont_write_bytecode = True  # the bundle's manifest lists every file of it
    sys.path[0] = str(folder.parent)
    sys.exit(importlib.import_module(f"{folder.name}.attempt").main(sys.argv[1:]))
