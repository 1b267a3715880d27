"""Faults on a real SLURM: the supervisor in the allocation acts as the one on this machine does. All of them, and for every day
one of each kind."""

import fault_table
import pytest
from fault_bench import Bench

WORDS = ("target=slurm", "nodes=2", "hardware.gpus_per_node=1", "hardware.domain_nodes=2")
AT_ONCE = 2  # jobs of two nodes on a cluster of four


@pytest.fixture(scope="module")
def checked(request, tmp_path_factory, session_login):
    """Checks a row; those that were asked for run together."""
    wanted = {item.callspec.params["fault"].name for item in request.session.items if item.module is request.module}
    if not session_login.ready():
        session_login.reset()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in session_login.environment().items():
            patch.setenv(name, value)
        bench = Bench(tmp_path_factory.mktemp("faults-slurm"), WORDS, AT_ONCE, pause=0.3)
        found = bench.run([fault for fault in fault_table.ON_SLURM if fault.name in wanted])
        yield lambda fault: bench.check(fault, found)
        bench.end()


ROWS = [
    pytest.param(fault, id=fault.name, marks=() if fault.name in fault_table.ONE_OF_EACH_KIND else (pytest.mark.slow,))
    for fault in fault_table.ON_SLURM
]


@pytest.mark.parametrize("fault", ROWS)
def test_a_fault(fault, checked):
    checked(fault)
