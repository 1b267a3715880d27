"""The logs of this project's own runs on H200s (tests/data/recorded; what ran is told in the project's notes on them)."""

from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "recorded"
FAILED = {
    "h200x2_te_overflow_rank0.log": "moe_overflow",
    "h200x2_te_ncclep_jit_poisoned_rank0.log": "ncclep_jit_poisoned",
    "h200x2_te_scan_segfault_rank0.log": "xla_compile_segfault",
}
"""Log -> what it died of."""
CLEAN = sorted(path.name for path in FOLDER.glob("*.log") if path.name not in FAILED)


def lines(name):
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()
