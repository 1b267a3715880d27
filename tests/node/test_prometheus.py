"""The metrics endpoint, scraped by a real HTTP client and read by Prometheus's own parser."""

import http.client
import math
import socket
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcher.node import prometheus
from launcher.node.prometheus import CONTENT_TYPE, Endpoint, Metrics
from launcher.node.table import Row

LABELS = {"run": 'demo "1a2b"\\x\ny', "attempt": "2", "node": "0"}
ROW = Row(2, 7, at=1.8e9, seconds=0.5, tflops=238.5, tokens=812.25, loss=6.5, grad_norm=1.25, demand=900, capacity=1000)


def metrics(rows=()):
    found = Metrics(LABELS, {"steps": ("How many steps the run shall have.", 60.0)})
    for row in rows:
        found.row(row)
    return found


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type in ("gauge", "counter", "summary") for family in families)
    return {sample.name: sample for family in families for sample in family.samples}


def test_every_value_of_a_step_is_there():
    found = metrics([ROW._replace(step=step) for step in range(8)])
    found.alarm("loss_spike")
    found.alarm("loss_spike")
    seen = samples(found.text())
    values = {name: sample.value for name, sample in seen.items()}
    assert values == {
        "launcher_steps": 60,
        "launcher_step": 7,
        "launcher_last_step_timestamp_seconds": 1.8e9,
        "launcher_loss": 6.5,
        "launcher_grad_norm": 1.25,
        "launcher_device_tokens_per_second": 812.25,
        "launcher_device_flops_per_second": 238.5e12,
        "launcher_moe_buffer_used_ratio": 0.9,
        "launcher_step_duration_seconds_sum": 2.5,
        "launcher_step_duration_seconds_count": 5,
        "launcher_alarms_total": 2,
    }
    assert all(sample.labels.items() >= LABELS.items() for sample in seen.values())
    assert seen["launcher_alarms_total"].labels["kind"] == "loss_spike"


@pytest.mark.parametrize(
    "loss", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, 1e30, 12345678901234567890.0, 0.1 + 0.2]
)
def test_every_number_is_read_back_exactly(loss):
    value = samples(metrics([ROW._replace(loss=loss)]).text())["launcher_loss"].value
    assert value == loss or (math.isnan(value) and math.isnan(loss))


def test_before_the_first_step_there_is_a_page_too():
    assert set(samples(metrics().text())) == {
        "launcher_steps",
        "launcher_step_duration_seconds_sum",
        "launcher_step_duration_seconds_count",
    }


def test_what_a_line_does_not_say_is_left_out():
    assert "launcher_moe_buffer_used_ratio" not in samples(metrics([Row(1, 0, loss=7.0)]).text())


@pytest.fixture
def said():
    return []


@pytest.fixture
def endpoint(said):
    """An endpoint that is looked at a hundred times a second, as a worker does it five times."""
    found = Endpoint(0, metrics([ROW]).text, said.append)
    over = threading.Event()

    def turn():
        while not over.wait(0.01):
            found.look(time.monotonic())

    thread = threading.Thread(target=turn)
    thread.start()
    yield found
    over.set()
    thread.join()
    found.close()


def ask(port, method="GET", path="/metrics", host="127.0.0.1"):
    client = http.client.HTTPConnection(host, port, timeout=20)
    client.request(method, path)
    answer = client.getresponse()
    body = answer.read().decode()
    client.close()
    return answer, body


def test_a_scrape(endpoint, said):
    assert said == [f"metrics for Prometheus on port {endpoint.port}, /metrics"]
    for _ in range(3):
        answer, body = ask(endpoint.port)
        assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
        assert samples(body)["launcher_loss"].value == 6.5


def test_over_ipv6_where_there_is_any(endpoint):
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert ask(endpoint.port, host="::1")[0].status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/metrics?name=x", 200), ("HEAD", "/metrics", 200), ("GET", "/", 404), ("POST", "/metrics", 405)],
)
def test_other_questions(endpoint, method, path, status):
    answer, body = ask(endpoint.port, method, path)
    assert answer.status == status
    assert bool(body) == (method == "GET")


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\xff" * 200, b"x" * 100_000, b"GET / HTTP/1.1\r\n"],
)
def test_nonsense_does_not_stop_it(endpoint, sent):
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
        except OSError:  # it was cut off
            pass
    assert ask(endpoint.port)[0].status == 200


def test_those_who_ask_nothing_hold_up_nobody(endpoint, monkeypatch):
    """More silent connections than it takes at a time: the next scrape comes when their time is over."""
    monkeypatch.setattr(prometheus, "_PATIENCE", 0.3)
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(20)]
    assert ask(endpoint.port)[0].status == 200
    for client in silent:
        client.close()


def test_a_taken_port_is_told_and_harmless(endpoint, said):
    second = Endpoint(endpoint.port, metrics().text, said.append)
    assert second.port is None
    assert said[-1].startswith(f"no metrics: port {endpoint.port}: Address already in use")
    second.look(0.0)
    second.close()


def test_a_port_is_free_again_at_once(said):
    first = Endpoint(0, metrics().text, said.append)
    port = first.port
    client = socket.create_connection(("127.0.0.1", port))
    first.look(time.monotonic())
    first.close()
    client.close()
    second = Endpoint(port, metrics().text, said.append)
    assert second.port == port
    second.close()


def test_a_page_larger_than_a_socket_takes_comes_whole():
    """The answer is sent in pieces, between looks, to a client that reads slowly."""
    page = "# HELP x y\n# TYPE x gauge\n" + "x 1\n" * 1_000_000
    found = Endpoint(0, lambda: page, print)
    with socket.create_connection(("127.0.0.1", found.port), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        for _ in range(10_000):
            found.look(0.0)
            client.setblocking(False)
            try:
                piece = client.recv(1 << 16)
            except BlockingIOError:
                continue
            if not piece:
                break
            data += piece
    found.close()
    assert data.partition(b"\r\n\r\n")[2].decode() == page
