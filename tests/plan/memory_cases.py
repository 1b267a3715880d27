"""Experiments as words -> what the memory formula says of them."""

from benchmarks.compiled import case_of
from launcher.config.compose import Composer
from launcher.plan import memory
from launcher.plan.case import Case

GIB = 1 << 30
COMPOSER = Composer()


def case(*words: str) -> Case:
    return case_of(COMPOSER, words)


def estimate(*words: str) -> memory.Memory:
    found = memory.estimate(case(*words))
    assert found is not None
    return found
