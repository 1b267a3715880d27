"""The SLURM target passes the suite for all targets, on a real SLURM."""

import pytest
from conformance import Conformance
from slurm_harness import SlurmHarness


class TestSlurm(Conformance):
    @pytest.fixture
    def harness(self, on_slurm):  # noqa: ARG002
        return SlurmHarness()
