"""The paths of an experiment measured side by side on real GPUs, through the launcher: `python -m benchmarks.h200 --help`."""
