"""A metrics endpoint for Prometheus: http://NODE:PORT/metrics, in its text format 0.0.4.

Answered between two looks at the trainers, by sockets that never block: a worker has one thread, and a scrape every few
seconds is no reason for another process.
Format: prometheus.io/docs/instrumenting/exposition_formats; names and units: prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from .steps import JUNK_STEPS
from .table import Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_LIMIT = 8192  # bytes; a scrape's request has some hundred
_PATIENCE = 5.0  # seconds that one request gets
_MOST = 16  # requests at a time; the next ones wait in the kernel's queue
_GAUGES: Mapping[str, tuple[str, Callable[[Row], Optional[float]]]] = {
    "step": ("The newest completed step, from 0.", lambda row: float(row.step)),
    "last_step_timestamp_seconds": ("When it was completed, Unix time.", lambda row: row.at),
    "loss": ("Its loss.", lambda row: row.loss),
    "grad_norm": ("Its gradient norm.", lambda row: row.grad_norm),
    "learning_rate": ("Its learning rate.", lambda row: row.learning_rate),
    "device_tokens_per_second": ("Tokens per second of one device, as MaxText counts them.", lambda row: row.tokens),
    "device_flops_per_second": (
        "Model FLOP/s of one device, as MaxText counts them.",
        lambda row: None if row.tflops is None else row.tflops * 1e12,
    ),
    "moe_buffer_used_ratio": (
        "Rows in the MoE receive buffer of the busiest rank, of those that it has; above 1 tokens are dropped.",
        lambda row: None if row.demand is None or not row.capacity else row.demand / row.capacity,
    ),
}


class Metrics:
    """What is known of one attempt, as the page of the endpoint."""

    def __init__(self, labels: Mapping[str, str], facts: Mapping[str, tuple[str, float]]) -> None:
        """`labels`: of every sample. `facts`: further gauges that do not change: name -> help and value."""
        self._labels = dict(labels)
        self._facts = dict(facts)
        self._row: Optional[Row] = None
        self._rows = 0
        self._timed = 0
        self._seconds = 0.0
        self._alarms: dict[str, int] = {}

    def row(self, row: Row) -> None:
        """The next completed step."""
        self._row = row
        self._rows += 1
        if self._rows > JUNK_STEPS and row.seconds is not None:
            self._timed += 1
            self._seconds += row.seconds

    def alarm(self, kind: str) -> None:
        """One alarm more of that kind (alarms.py)."""
        self._alarms[kind] = self._alarms.get(kind, 0) + 1

    def text(self) -> str:
        """The page."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, (about, value) in self._facts.items():
            yield from self._family(name, "gauge", about, [("", {}, value)])
        if self._row is not None:
            for name, (about, read) in _GAUGES.items():
                found = read(self._row)
                if found is not None:
                    yield from self._family(name, "gauge", about, [("", {}, found)])
        about = f"Seconds of the steps of this attempt, its first {JUNK_STEPS} left out."
        sums: list[tuple[str, dict[str, str], float]] = [
            ("_sum", {}, self._seconds),
            ("_count", {}, float(self._timed)),
        ]
        yield from self._family("step_duration_seconds", "summary", about, sums)
        counts = [("", {"kind": kind}, float(count)) for kind, count in sorted(self._alarms.items())]
        yield from self._family("alarms_total", "counter", "Alarms of this attempt.", counts)

    def _family(
        self, name: str, kind: str, about: str, samples: list[tuple[str, dict[str, str], float]]
    ) -> Iterator[str]:
        yield f"# HELP launcher_{name} {about}"
        yield f"# TYPE launcher_{name} {kind}"
        for suffix, labels, value in samples:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**self._labels, **labels}.items())
            yield f"launcher_{name}{suffix}{{{pairs}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


class _Head(NamedTuple):
    """The first line of a request."""

    method: str
    path: str


@dataclass
class _Client:
    """One request: what has come of it, what of the answer is not sent, and until when it must be done."""

    connection: socket.socket
    until: float
    asked: bytes = b""
    left: bytes = field(default=b"")


class Endpoint:
    """Serves a page while the trainers run. A Watcher (monitor.py). A port that is taken is told and no reason to stop."""

    def __init__(self, port: int, page: Callable[[], str], say: Callable[[str], None]) -> None:
        """`port`: on all of this node's addresses, 0 = any. `page`: makes the text of /metrics."""
        self._page = page
        self._clients: list[_Client] = []
        self._server: Optional[socket.socket] = None
        try:
            self._server = _listening(port)
            self._server.setblocking(False)
            say(f"metrics for Prometheus on port {self.port}, /metrics")
        except OSError as error:
            say(f"no metrics: port {port}: {error.strerror}; monitor.metrics_port names another one")

    @property
    def port(self) -> Optional[int]:
        """The port that is listened on; None: on none."""
        return None if self._server is None else int(self._server.getsockname()[1])

    def line(self, rank: int, text: str, now: float) -> None:
        """The rows come from elsewhere."""

    def look(self, now: float) -> None:
        """Answers whoever has asked. `now`: seconds of the monotonic clock."""
        if self._server is None:
            return
        with contextlib.suppress(OSError):  # BlockingIOError: nobody is there
            while len(self._clients) < _MOST:
                connection, _ = self._server.accept()
                connection.setblocking(False)
                self._clients.append(_Client(connection, now + _PATIENCE))
        for client in list(self._clients):
            if self._is_done(client) or now > client.until:
                self._clients.remove(client)
                client.connection.close()

    def close(self) -> None:
        """Ends all connections."""
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _is_done(self, client: _Client) -> bool:
        """Goes on with one request as far as that is possible now; whether it is over."""
        try:
            if not client.left:
                data = client.connection.recv(_REQUEST_LIMIT)
                client.asked += data
                if not data or len(client.asked) > _REQUEST_LIMIT:
                    return True
                if b"\r\n\r\n" not in client.asked:
                    return False
                client.left = self._answer(client.asked)
            client.left = client.left[client.connection.send(client.left) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not client.left

    def _answer(self, asked: bytes) -> bytes:
        words = asked.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        head = _Head(words[0], words[1].partition("?")[0] if len(words) == 3 else "")
        status, body = "200 OK", b""
        if head.method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        elif head.path != "/metrics":
            status, body = "404 Not Found", b"see /metrics\n"
        else:
            body = self._page().encode()
        top = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return top.encode() + (b"" if head.method == "HEAD" else body)


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel without IPv6; a taken port fails below, too
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
