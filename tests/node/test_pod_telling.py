"""In pods no supervisor is left at the end: node 0 tells it, and the next start tells what follows. Every pod answers a scrape."""

import socket
import urllib.request

import pytest
from chat import SECRET, Chat
from pods import Pods

NAME = "TEAM_CHAT_URL"


@pytest.fixture
def chat():
    server = Chat()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pods(tmp_path, stop_leftovers):
    return Pods(tmp_path / "volume", leftovers=stop_leftovers)


def test_a_gang_that_is_started_again_and_finishes(pods, chat):
    pods.write("mode=die at=4 attempt=1 rank=3 checkpoint_period=2", nodes=2, monitor={"webhook": NAME})
    environ = {NAME: chat.url, "no_proxy": "127.0.0.1"}
    pods.start(**environ).end()
    assert pods.start(**environ).end() == {0: 0, 1: 0}, pods.texts()
    told = [line.removeprefix(f"{pods.name}: ") for line in chat.lines]
    starts = [
        "attempt 1 starts on 2 nodes, ",
        "attempt 1 ended: trainer (1): ",
        "attempt 1: restart: ",
        "attempt 2 starts on 2 nodes, ",
        "attempt 2 ended: finished (0): ",
    ]
    assert [line[: len(start)] for line, start in zip(told, starts, strict=True)] == starts
    assert SECRET not in pods.texts()


def test_every_pod_answers_a_scrape(pods):
    """Two pods of one machine share its ports: one answers, the other says that it cannot."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pods.write("hold=4", nodes=2, monitor={"metrics_port": port}).start()
    pods.wait_step(3)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert "launcher_attempt_start_time_seconds{" in answer.read().decode()
    words = sorted(
        [pods.log(node).read_text().count(text) for node in (0, 1)] == [1, 0]
        for text in (f"metrics for Prometheus on port {port}", f"no metrics: port {port}: Address already in use")
    )
    assert words == [False, True]
