"""Evidence of a stall: what is gathered, which nodes stand out in it, and how an attempt ends that does not move."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from worker_bench import children_of, is_alive, wait_dead

from launcher.node import evidence, flight
from launcher.node.hang import Hang, Heard, Others, is_traced
from launcher.node.layout import AttemptFolder
from launcher.node.speech import Record, line, parse
from launcher.node.stall import Bounds, Clock, Schedule

STALLS = {"monitor": {"stall": "act", "stall_seconds": 1}}
HANGS = {"mode": "hang", "at": 3}


def summary(node, *, step=41, top="wait (pjit.py:7)", busy=(100.0, 100.0), state="S", xids=()):
    ranks = 2
    first = node * ranks
    return {
        "node": node,
        "host": f"n{node}",
        "at": 100.0 + node,
        "why": "no step",
        "ranks": [
            {"rank": rank, "pid": 1, "last_step": step, "top": top, "state": state, "wchan": "nvidia_wait"}
            for rank in range(first, first + ranks)
        ],
        "gpus": [{"index": index, "busy": value} for index, value in enumerate(busy)],
        "xids": list(xids),
    }


def standing(*odd, nodes=8, **usual):
    by_node = {each["node"]: each for each in odd}
    return flight.standing([by_node.get(node) or summary(node, **usual) for node in range(nodes)])


ODD = {
    "xid": (
        {"xids": ["Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."]},
        "its GPU driver says Xid (PCI:0000:01",
    ),
    "behind": ({"step": 40}, "its last step is 40, the others' 41"),
    "idle": ({"busy": (100.0, 0.0)}, "a GPU of it is at 0 %, the others work"),
    "in the kernel": ({"state": "D"}, "rank 6 waits in the kernel (nvidia_wait)"),
    "elsewhere": ({"top": "read (grain.py:3)"}, "it is in read (grain.py), the others in wait (pjit.py)"),
}


@pytest.mark.parametrize(("what", "said"), ODD.values(), ids=ODD)
def test_a_node_that_stands_out_is_named_and_why(what, said):
    found = standing(summary(3, **what))
    assert found.nodes == (3,)
    assert found.text.startswith(f"node 3 (n3) stands out: {said}")


@pytest.mark.parametrize("what", [what for what, _ in ODD.values()], ids=ODD)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_half_of_the_nodes_or_all_are_no_suspects(what, nodes):
    odd = [summary(node, **what) for node in range(max(1, nodes // 2))]
    assert standing(*odd, nodes=nodes).nodes == ()


def test_nobody_stands_out_where_all_are_alike():
    found = standing()
    assert found == flight.Standing((), "all 16 rank(s) are in wait (pjit.py)")


def test_the_stronger_sign_is_told():
    assert standing(summary(2, top="read (grain.py:3)"), summary(5, step=40)).nodes == (5,)


def test_what_cannot_be_seen_is_no_sign():
    blind = [summary(node, step=None, top="", busy=(), state="?") for node in range(1, 8)]
    assert flight.standing([summary(0, step=40, top="read (x.py:1)", busy=(0.0,)), *blind]) == flight.Standing(
        (), "all 2 rank(s) are in read (x.py)"
    )


def test_a_rank_that_stands_alone_is_named_with_its_place():
    odd = summary(3)
    odd["ranks"][1]["top"] = "read (grain.py:3)"
    assert standing(odd).text.endswith("; rank 7 in read (grain.py), the other 15 in wait (pjit.py)")


@pytest.mark.parametrize(("state", "place"), [("T", "state T (stopped)"), ("D", "state D (in the kernel)")])
def test_a_rank_whose_stack_cannot_be_read_is_told_by_its_state(state, place):
    odd = summary(0)
    odd["ranks"][1].update(top="", state=state)
    assert flight.standing([odd]).text == f"rank 0 in wait (pjit.py), rank 1 in {place}"


def test_files_of_another_make_are_passed_over(tmp_path):
    attempt = AttemptFolder(tmp_path)
    assert (flight.suspects(attempt), flight.told(attempt)) == ((), "")
    for node, text in enumerate(['{"node": 0', "[]", '{"node": "1", "ranks": []}', '{"node": 3, "ranks": 7}', "\xff"]):
        attempt.flight_summary(node).write_text(text, encoding="latin-1")
    assert flight.read(attempt) == []


def test_a_summary_travels_as_a_record():
    record = Record(2, AttemptFolder(Path("x")).flight_summary(17).name, {"node": 17})
    assert parse(line(record)) == record


def test_a_summary_fits_into_a_line_of_a_pods_log(tmp_path, monkeypatch):
    log = "\n".join([XID.replace("pid=7", "\u20ac" * 900)] * 500)
    for name in ("nvidia-smi", "dmesg"):
        program = tmp_path / name
        program.write_text(
            SMI.replace("; echo", "; for i in 1 2 3 4 5 6 7; do echo 7, 1.00, 700.00, 0, 345, 1980, 30, 2; done; echo")
            if name == "nvidia-smi"
            else f"#!/bin/sh\ncat {tmp_path}/log\n"
        )
        program.chmod(0o755)
    (tmp_path / "log").write_text(log)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for rank in range(8):
        AttemptFolder(tmp_path).rank_log(rank).write_text(log)
    found, _ = gathered(tmp_path, [os.getpid()] * 8)
    assert len(found["gpus"]) == 9
    assert len(found["xids"]) == 8
    assert len(line(Record(1, "flight-node0.json", found))) < 16 * 1024


def gathered(tmp_path, pids, seconds=20.0, ras=""):
    """What evidence.py finds; the summary and the folder."""
    attempt = AttemptFolder(tmp_path)
    folder = attempt.flight(0)
    folder.mkdir(parents=True)
    request = {
        **{"folder": str(folder), "summary": str(attempt.flight_summary(0)), "node": 0, "host": "here", "at": 1.0},
        **{"why": "a test", "since": 0.0, "seconds": seconds, "python": sys.executable, "ras": ras},
        "ranks": [
            {"rank": rank, "pid": pid, "last_step": 5, "log": str(attempt.rank_log(rank))}
            for rank, pid in enumerate(pids)
        ],
    }
    evidence.gather(request)
    return flight.read(attempt)[0], folder


def test_what_is_there_is_looked_at_and_what_is_not_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(evidence, "py_spy", lambda _: "")
    AttemptFolder(tmp_path).rank_log(0).write_bytes(b"one\n\xfftwo\n" * 100)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    found, folder = gathered(tmp_path, [os.getpid(), gone.pid], ras="127.0.0.1:1")
    own, dead = found["ranks"]
    assert (own["state"], own["said"], own["top"]) in [(state, "?two", "") for state in "RS"]
    assert (dead["state"], "said" in dead) == ("gone", False)
    assert found["complete"]
    assert found["gpus"] == []
    text = {path.name: path.read_text() for path in folder.iterdir()}
    assert f"{os.getpid()} " in text["rank0.threads"]
    assert "kernel stack of" in text["rank0.threads"]
    assert text["rank1.threads"] == f"/proc/{gone.pid}: No such file or directory\n"
    assert text["rank1.last"].endswith("rank1.log: No such file or directory\n")
    assert text["rank0.stack"].startswith("no py-spy on PATH")
    assert text["nvidia-smi"] == "no nvidia-smi here\n"
    assert "no dmesg here" in text["dmesg"]
    assert "127.0.0.1:1" in text["nccl-ras"]


def test_a_probe_that_does_not_answer_is_cut_off(tmp_path):
    text, why = evidence.run(["sh", "-c", "echo begun; exec sleep 60"], 1)
    assert (text, why) == ("begun\n", "sh: no answer within 1 s")


SMI = """#!/bin/sh
case "$*" in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.' >&2; exit 2;;
*query-gpu*) echo '0, 190.53, 700.00, 100, 1980, 1980, 41, 1024'; echo '1, [N/A], 700.00, 0, 345, 1980, 30, 2';;
*) echo 'the whole report';;
esac
"""


def test_an_older_driver_is_asked_for_less(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text, (first, second) = evidence.gpus(20)
    assert (first["watts"], first["busy"], first["mhz"], first["reasons"]) == (190.53, 100.0, 1980.0, "")
    assert (second["watts"], second["busy"]) == (None, 0.0)
    assert "the whole report" in text


XID = "1970-01-01T00:01:51,000000+00:00 NVRM: Xid (PCI:0000:01:00): 79, pid=7"


def test_only_faults_since_the_start_are_told(tmp_path, monkeypatch):
    lines = [
        "1970-01-01T00:00:50,000000+00:00 NVRM: Xid (PCI:0000:01:00): 13, an old one",
        "1970-01-01T00:01:50,000000+00:00 usb 1-1: new device",
        XID,
    ]
    program = tmp_path / "dmesg"
    program.write_text("#!/bin/sh\ncat <<'E'\n" + "\n".join(lines) + "\nE\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text, xids = evidence.kernel_log(100.0, 20)
    assert xids == ["Xid (PCI:0000:01:00): 79, pid=7"]
    assert "an old one" in text


def serve(answer):
    """The other end of NCCL's line protocol (src/ras/client.cc, ras/client_support.cc): the port, and what was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked = []

    def speak():
        with listener, listener.accept()[0] as connection, connection.makefile("rb") as lines:
            for text in lines:
                asked.append(text)
                if text == b"VERBOSE STATUS\n":
                    answer(connection)
                    return
                connection.sendall(b"SERVER PROTOCOL 2\n" if text.startswith(b"CLIENT") else b"OK\n")

    threading.Thread(target=speak, daemon=True).start()
    return listener.getsockname()[1], asked


def test_nccl_is_asked_in_its_own_words_and_may_say_a_lot():
    port, asked = serve(lambda connection: connection.sendall(b"Job summary\n" * 100_000 + b"the end\n"))
    report = evidence.ras(f"localhost:{port}", 20)
    assert asked == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 15\n", b"VERBOSE STATUS\n"]
    assert report.count("Job summary\n") == 100_000
    assert report.endswith("the end\n")


def test_an_nccl_that_does_not_answer_is_left():
    hung = threading.Event()
    port, _ = serve(lambda connection: (connection.sendall(b"Job"), hung.wait(60)))
    report = evidence.ras(f"127.0.0.1:{port}", 0.5)
    hung.set()
    assert "Job" in report
    assert f"NCCL's RAS at 127.0.0.1:{port}: timed out" in report


def test_a_probe_that_hangs_hides_nothing_of_the_others(tmp_path):
    """As nvidia-smi does in a driver that hangs: nothing ends it, and evidence.py is killed in the end."""
    for name, text in (("nvidia-smi", "exec sleep 600"), ("dmesg", f"echo '{XID}'")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    attempt = AttemptFolder(tmp_path)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = flight.Asked(attempt, 0, {0: os.getpid()}, {0: 7}, 0.0, sys.executable, environ)
    journey = flight.Flight(asked, "a test", 0.0)
    end = time.monotonic() + 60
    while not (flight.read(attempt) and flight.read(attempt)[0]["xids"]) and time.monotonic() < end:
        assert not journey.is_done(flight.MOST_SECONDS - 1)
        time.sleep(0.05)
    assert journey.is_done(flight.MOST_SECONDS + 1)
    (found,) = flight.read(attempt)
    assert not found["complete"]
    assert found["ranks"][0]["last_step"] == 7
    assert found["xids"] == ["Xid (PCI:0000:01:00): 79, pid=7"]


def test_a_debugger_is_noticed():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not is_traced(child.pid)
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        if ptrace(16, child.pid, None, None) != 0:  # PTRACE_ATTACH
            pytest.skip("this machine lets nobody trace a process")
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_traced(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not is_traced(child.pid)


def flight_files(run, node=0, attempt=1):
    return {path.name for path in (run.path / f"attempts/{attempt}/flight/node{node}").iterdir()}


def test_a_stall_is_looked_into_and_ends_the_attempt(run):
    done = run.write(STALLS, **HANGS, rank=1).worker()
    assert done.returncode == 77, done.stdout + done.stderr
    result = run.result()
    assert result["outcome"] == "stalled"
    assert "after step 2 (bound: 1 s, as monitor.stall_seconds says)" in result["reason"]
    assert {end["returncode"] for end in result["ranks"]} == {-9}
    seen = run.json("flight-node0.json")
    assert [(rank["rank"], rank["last_step"], rank["state"]) for rank in seen["ranks"]] == [(0, 2, "S"), (1, 2, "S")]
    assert seen["complete"]
    assert flight_files(run) >= {"rank0.stack", "rank1.threads", "rank1.last", "dmesg", "nvidia-smi", "nccl-ras"}
    assert "[worker] stalled: no step for" in done.stdout
    assert "evidence is in" in done.stdout
    assert flight.suspects(AttemptFolder(run.path / "attempts/1")) == ()


def test_pythons_stacks_are_shown_where_py_spy_is_and_name_the_rank(run):
    path = evidence.py_spy(sys.executable)
    if not path:
        pytest.skip("no py-spy on PATH: `pip install py-spy`")
    done = run.write(STALLS, **HANGS, rank=1).worker(PATH=f"{os.path.dirname(path)}:{os.environ['PATH']}")
    assert done.returncode == 77
    reason = run.result()["reason"]
    if "rank 1 in" not in reason:
        pytest.skip(f"py-spy may not look: {run.log('flight/node0/rank1.stack')[-300:]}")
    assert "rank 0 in wait_for_the_other_ranks (standin_trainer.py)" in reason
    assert "rank 1 in wait_in_a_driver (standin_trainer.py)" in reason


def test_a_start_that_hangs_is_a_stall(run):
    done = run.write({"monitor": {"stall": "act", "first_step_seconds": 1}}, mode="early").worker()
    assert done.returncode == 77
    assert "since the start (bound: 1 s, to the first step)" in run.result()["reason"]


def test_warn_tells_once_and_goes_on(run, stop_leftovers):
    run.write({"monitor": {"stall": "warn", "stall_seconds": 1}}, **HANGS)
    process = run.start()
    stop_leftovers.append(process.pid)
    journal = run.path / "attempts/1/worker0.log"
    run.wait_for("completed step: 2,")
    end = time.monotonic() + 60
    while "evidence is in" not in (journal.read_text() if journal.exists() else "") and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.2)  # a second signal counts after a second (stopping.SAME_REQUEST)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert output.count("stalled: no step for") == 1
    assert "nothing else is done (monitor.stall=warn)" in output


def test_none_asks_nothing(run, stop_leftovers):
    run.write({"monitor": {"stall": "none", "stall_seconds": 1}}, **HANGS)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,")
    time.sleep(1.5)
    assert process.poll() is None
    assert not (run.path / "attempts/1/flight").exists()
    process.kill()
    process.communicate(timeout=60)


def test_a_stop_signal_cuts_the_evidence_short(run, stop_leftovers, tmp_path):
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "nvidia-smi").write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/asked\nexec sleep 600\n")
    (slow / "nvidia-smi").chmod(0o755)
    run.environ["PATH"] = f"{slow}:{run.environ['PATH']}"
    run.write({**STALLS, "stop_grace_seconds": 1}, checkpoint_period=2, **HANGS)
    process = run.start()
    stop_leftovers.append(process.pid)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        words = (tmp_path / "asked").read_text().split() if (tmp_path / "asked").exists() else []
        if words:
            break
        time.sleep(0.05)
    asked = int(words[0])
    stop_leftovers.append(asked)
    trainers = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 75, output  # not 77: the signal wins, and its checkpoint is there
    assert wait_dead([asked, *trainers]) == []
    assert not run.json("flight-node0.json")["complete"]


def hang_on(attempt, said, *, node=0, ending=()):
    """A watcher of one rank that has 10 s to its first step, and tells all that it would do."""
    asked = flight.Asked(attempt, node, {}, {}, 0.0, sys.executable, {})
    heard = Heard(said.append, lambda step, text: said.append((step, text)), lambda: None)
    others = Others(lambda: None, said.append, 0.0)
    clock = Clock([node], Bounds(10.0), Schedule(8), 0.0)
    return Hang(asked, clock, acts=True, pids=dict, is_ending=lambda: bool(ending), others=others, heard=heard)


def test_a_training_that_ends_anyway_does_not_stall(tmp_path):
    said, ending = [], []
    hang = hang_on(AttemptFolder(tmp_path), said, ending=ending)
    assert hang.look(9.0) is None
    ending.append("a rank has ended")
    assert hang.look(20.0) is None
    assert said == []
    ending.clear()
    assert hang.look(21.0) is None
    assert said[0].startswith("stalled: no step for 21 s since the start")
    hang.close()


def test_a_node_whose_ranks_print_no_steps_ends_nothing(tmp_path):
    said = []
    attempt = AttemptFolder(tmp_path)
    attempt.rank_log(0).write_text("completed step: 0, loss: 1.0\n")
    hang = hang_on(attempt, said, node=3)
    assert [hang.look(now) for now in (11.0, 12.0, 13.0)] == [None] * 3
    assert said == ["rank 0 has made steps, the ranks here print none: whether they stall is not looked at here"]


def test_a_run_that_moves_is_left_alone(run):
    done = run.write({"monitor": {"stall": "act", "stall_seconds": 15}, "steps": 40}, pause=0.1).worker()
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("first", [0, 1])
def test_all_nodes_gather_whoever_sees_the_stall_first(run, stop_leftovers, first):
    place = ["--nodes", "2", "--coordinator", "127.0.0.1", "--port", "23457", "--node-rank"]
    run.write({"nodes": 2, "processes_per_node": 1, "monitor": {"stall": "act", "stall_seconds": 40}}, **HANGS)
    processes = {}
    for node in (1 - first, first):
        if node == first:
            run.write({"nodes": 2, "processes_per_node": 1, **STALLS}, **HANGS)
        processes[node] = run.start(*place, str(node))
        stop_leftovers.append(processes[node].pid)
        run.wait_for("completed step: 2,", rank=node)
    outputs = {node: process.communicate(timeout=90)[0] for node, process in processes.items()}
    assert {process.returncode for process in processes.values()} == {77}, outputs
    assert run.json("failure.json")["node"] == first
    assert run.json("failure.json")["code"] == 77
    assert [each["complete"] for each in (run.json("flight-node0.json"), run.json("flight-node1.json"))] == [True, True]
    other = run.json("result.json" if first else "node1.json")
    assert other["reason"].startswith(f"node {first} (")
    assert not any(is_alive(process.pid) for process in processes.values())
