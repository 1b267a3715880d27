"""Every fault of the table on this machine, through `submit`: the right events, the right action, nothing lost, no endless retry."""

import fault_table
import pytest
from fault_bench import Bench, Fault
from fault_deeds import RESTARTED, do

from launcher.runs.attempts import State

AT_ONCE = 4


@pytest.fixture(scope="module")
def checked(request, tmp_path_factory):
    """Checks a row; those that were asked for run together."""
    wanted = {item.callspec.params["fault"].name for item in request.session.items if "checked" in item.fixturenames}
    bench = Bench(tmp_path_factory.mktemp("faults"), ["target=local"], AT_ONCE)
    found = bench.run([fault for fault in fault_table.ALL if fault.name in wanted])
    yield lambda fault: bench.check(fault, found)
    bench.end()


@pytest.mark.parametrize("fault", fault_table.ALL, ids=lambda fault: fault.name)
def test_a_fault(fault, checked):
    checked(fault)


OWN_TABLE = """\
[[failure]]
name = "our_filer"
where = ["rank"]
patterns = ['filer-7 .* is read-only']
cause = "filer-7 went read-only"
action = "{action}"
help = "call the storage team"
"""


@pytest.mark.parametrize("action", ["stop", "retry"])
def test_a_failure_of_the_users_own_table_is_acted_upon(action, tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "failures.toml").write_text(OWN_TABLE.format(action=action))
    monkeypatch.setenv("LAUNCHER_CONF", str(tmp_path / "conf"))
    died = [do("say", 6, 0, text="OSError: filer-7 volume moe is read-only"), do("leave", 6, 0, code=1)]
    fault = Fault("our_filer", [died], steps=("0-4",), state=State.FAILED, events=("our_filer",), cause="our_filer")
    if action == "retry":
        fault = fault._replace(steps=("0-4", "5-11"), decisions=RESTARTED, state=State.FINISHED)
    bench = Bench(tmp_path, ["target=local"], 1)
    bench.check(fault, bench.run([fault]))


def test_the_table_has_faults_of_every_kind():
    names = [fault.name for fault in fault_table.ALL]
    assert len(names) == len(set(names)) >= 60
    assert set(fault_table.ONE_OF_EACH_KIND) <= set(names)
