"""A small bundle, made once for a file of tests, and a machine that takes it."""

from pathlib import Path

import pytest
from small_bundle import Machine, Made, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
