"""How long a person waits for the command line: `python -m benchmarks.command_line`.

Each figure is the median of several runs, with the fastest and the slowest; beside it stands a yardstick measured in the
same minute: Python itself, importing Hydra, and Hydra's own composition of the same words. Cold = a new process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

RUNS = 9
POINTS = 200
BASE = "+exp=dsv3_128gpu"


def timed(action: Callable[[], object], runs: int = RUNS) -> list[float]:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return seconds


def show(name: str, seconds: list[float], aim: str = "") -> None:
    shown = f"{1e3 * statistics.median(seconds):9.1f} ms   ({1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f})"
    print(f"{name:58} {shown:36} {aim}", flush=True)


def process(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )


def cold() -> None:
    show("yardstick: python -c pass", timed(process("-c", "pass")))
    show("yardstick: python -c 'import hydra'", timed(process("-c", "import hydra")))
    show("--help, cold", timed(process("-m", "launcher", "--help")), "aim 150 ms")
    show("plan +exp=dsv3_128gpu, cold", timed(process("-m", "launcher", "plan", BASE)), "aim 800 ms")
    show(
        "render --print +exp=dsv3_1024gpu, cold",
        timed(process("-m", "launcher", "render", "--print", "+exp=dsv3_1024gpu")),
    )


@contextmanager
def hydra_compose() -> Iterator[Callable[[list[str]], Any]]:
    from hydra import compose, initialize_config_dir

    from launcher.config.compose import CONFIG_NAME, register_schema
    from launcher.config.groups import CONF_DIR

    register_schema()
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        yield lambda words: compose(CONFIG_NAME, words)


def sweep() -> None:
    from launcher.config.compose import Composer

    points = [[BASE, f"mesh.ici.expert={1 + i % 8}", f"trainer.steps={100 + i}"] for i in range(POINTS)]
    composer = Composer()
    first = timed(lambda: composer.compose(points[0]), 1)
    each = [timed(lambda words=words: composer.compose(words), 1)[0] for words in points]  # type: ignore[misc]
    show("compose, the first point of a sweep", first)
    show(f"compose, each further of {POINTS} points", each, "aim 10 ms")
    with hydra_compose() as compose:
        hydra_each = [timed(lambda words=words: compose(words), 1)[0] for words in points[:40]]  # type: ignore[misc]
    show("yardstick: Hydra's own compose of the same words", hydra_each)


def bundle() -> None:
    from launcher.config.compose import Composer
    from launcher.plan.plan import make
    from launcher.render.bundle import render

    composer = Composer()
    composed = composer.compose(["+exp=dsv3_1024gpu"])
    assert composed.experiment is not None, composed.issues
    experiment = composed.experiment
    show("plan of 1,024 GPUs, from a composed experiment", timed(lambda: make(experiment)))
    plan = make(experiment)
    show("render of a 1,024-GPU bundle, from a plan", timed(lambda: render(plan)))


if __name__ == "__main__":
    cold()
    sweep()
    bundle()
