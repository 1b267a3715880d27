"""One run from its submission to its end: what a chat is told of it, and what Prometheus sees."""

import os
import socket
import urllib.error
import urllib.request

import pytest
from bench import Bench, wait_until
from chat import SECRET, Chat
from prometheus_client.parser import text_string_to_metric_families

from launcher.runs import ending, store
from launcher.runs.attempts import State, judge_one

NAME = "TEAM_CHAT_URL"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Harness:
    def __init__(self, *words):
        self.words = ("target=local", "monitor.max_failures=1", "monitor.restart_pause_seconds=0", *words)


@pytest.fixture
def chat():
    server = Chat()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def start(tmp_path, monkeypatch, chat):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(NAME, chat.url)
    root = tmp_path / "runs"

    def go(*words, orders=""):
        bench = Bench(root, Harness(f"monitor.webhook={NAME}", f"env.secrets=[{NAME}]", *words))
        return bench, bench.start(orders)

    yield go
    for run in store.all_runs(root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample for family in families for sample in family.samples}


def assert_no_file_holds_the_url(run):
    for folder, _, names in os.walk(run.folder):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert SECRET.encode() not in file.read(), name


def test_a_run_that_is_started_again_and_finishes(start, chat):
    port = free_port()
    words = (f"monitor.metrics_port={port}",)
    bench, run = start(*words, orders="mode=die at=2 attempt=1 rank=1")
    bench.wait(run, State.FINISHED)
    wait_until(lambda: len(chat.lines) >= 4, 30, lambda: chat.lines)
    told = [line.removeprefix(f"{run.name}: ") for line in chat.lines]
    assert told[0].startswith("attempt 1 starts on 1 node, ")
    assert told[1].startswith("attempt 1: restart: ")
    assert "rank 1 ended with return code 1" in told[1]
    assert told[2].startswith("attempt 2 starts on 1 node, ")
    assert told[3].startswith("attempt 2: stop: ")
    assert_no_file_holds_the_url(run)


def test_a_scrape_while_it_trains(start):
    port = free_port()
    bench, run = start(f"monitor.metrics_port={port}", orders="hold=8")
    bench.wait_for_step(run, 7)
    wait_until(lambda: scrape(port).get("launcher_step", (0, 0, -1))[2] == 7, 30)
    seen = scrape(port)
    assert seen["launcher_loss"].value == pytest.approx(9.93)
    assert seen["launcher_step"].labels == {"run": run.name, "attempt": "1", "node": "0"}
    assert seen["launcher_steps"].value == 12
    bench.let_go(run)
    bench.wait(run, State.FINISHED)
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape(port)


def test_a_chat_that_is_away_stops_nothing(start, chat, monkeypatch):
    monkeypatch.setenv(NAME, f"http://127.0.0.1:{free_port()}/{SECRET}")
    bench, run = start()
    bench.wait(run, State.FINISHED)
    supervisor = run.layout.supervisor_log
    wait_until(
        lambda: "webhook: a message was lost: Connection refused" in supervisor.read_text(), 60, supervisor.read_text
    )
    assert SECRET not in supervisor.read_text()
    assert SECRET not in run.layout.attempt(1).worker_log().read_text()


def test_a_port_that_is_taken_stops_nothing(start):
    with socket.create_server(("", 0)) as taken:
        bench, run = start(f"monitor.metrics_port={taken.getsockname()[1]}")
        bench.wait(run, State.FINISHED)
    assert "no metrics: port" in run.layout.attempt(1).worker_log().read_text()


def test_a_supervisor_on_slurm_tells_what_it_decides(slurm_bench, monkeypatch, chat):
    """The variable gets from the submitting shell to the supervisor and to the worker, and into no file."""
    monkeypatch.setenv(NAME, chat.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    slurm_bench.harness.words = [*slurm_bench.harness.words, f"monitor.webhook={NAME}"]
    slurm_bench.environ = dict(os.environ)
    run = slurm_bench.finish(secrets=(NAME,))
    wait_until(lambda: len(chat.lines) >= 2, 30, lambda: chat.lines)
    told = [line.removeprefix(f"{run.name}: ") for line in chat.lines]
    assert told[0].startswith("attempt 1 starts on ")
    assert told[1].startswith("attempt 1: stop: ")
    assert_no_file_holds_the_url(run)
