"""A loopback proxy before an API server that does, on order, what networks and busy servers do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k8s.testbed.client import Client
from k8s.testbed.server import ApiServer, free_ports, kubeconfig

REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
TIMEOUT_S = 600


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path (with its query) match; -1 times for ever.

    delay_s      the request waits so long first
    status       this answer, with Kubernetes' Status object, instead of the server's; `message`, `retry_after_s` go with it
    lost         "request": the connection closes before the server has seen it; "answer": after the server has done it
    cut_after    the answer's stream breaks off after so many lines (a watch's events, a log's lines)
    expired      a watch is told 410 Gone in the stream, as after a compaction
    """

    method: str = ".*"
    path: str = ".*"
    times: int = 1
    delay_s: float = 0.0
    status: int = 0
    message: str = "injected by the test bed"
    retry_after_s: int | None = None
    lost: str = ""
    cut_after: int | None = None
    expired: bool = False

    def matches(self, method: str, path: str) -> bool:
        """Say whether the request is one that this is for."""
        return bool(self.times and re.fullmatch(self.method, method) and re.search(self.path, path))


class Proxy:
    """Passes everything on to `server` as its administrator; `kubeconfig` leads here. Use as a context manager, or start and stop."""

    def __init__(self, server: ApiServer, folder: Path | None = None) -> None:
        self.server = server
        self.port = free_ports(1)[0]
        self.kubeconfig = (folder or server.folder) / f"kubeconfig-proxy-{self.port}"
        self.seen: list[tuple[str, str]] = []  # (method, path with query) of every request that arrived
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listening: _Listener | None = None

    def start(self) -> Proxy:
        """Begin, with no fault."""
        self.kubeconfig.write_text(kubeconfig(f"https://127.0.0.1:{self.port}", self.server.pki, "admin"))
        self.up()
        return self

    def stop(self) -> None:
        """End; open streams break off."""
        self.down()

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def inject(self, fault: Fault) -> Fault:
        """Order a fault; its `times` counts down. Those ordered first come first."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Order nothing any more."""
        with self._lock:
            self._faults.clear()

    def count(self, method: str, path: str) -> int:
        """Say how many requests arrived whose method and path match."""
        with self._lock:
            return sum(bool(re.fullmatch(method, m) and re.search(path, p)) for m, p in self.seen)

    def down(self) -> None:
        """Refuse connections, and break off those that are open."""
        if self._listening:
            self._listening.shutdown()
            self._listening.server_close()
            self._listening = None
        self.break_off()

    def up(self) -> None:
        """Listen (again) at the same address."""
        if self._listening is None:
            self._listening = _Listener(self)
            threading.Thread(target=self._listening.serve_forever, name="proxy", daemon=True).start()

    def break_off(self) -> None:
        """Break off every open connection: what follows a log or a watch sees its stream end."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def take(self, method: str, path: str) -> Fault | None:
        """Note a request, and give the fault for it."""
        with self._lock:
            self.seen.append((method, path))
            for fault in self._faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None

    @contextlib.contextmanager
    def opened(self, connection: socket.socket) -> Iterator[None]:
        """Know a connection as open."""
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.upstream = Client(proxy.server.port, proxy.server.pki)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(proxy.server.pki / "server.crt", proxy.server.pki / "server.key")
        super().__init__(("127.0.0.1", proxy.port), _Handler)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, *_: object) -> None:
        pass  # a client that went away, or that was sent away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with self.server.proxy.opened(self.connection):
            super().handle_one_request()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.proxy.take(self.command, self.path) or Fault()
        time.sleep(fault.delay_s)
        if fault.lost == "request":
            self._hang_up()
        elif fault.status:
            self._say(fault)
        elif fault.expired:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
            event = {"type": "ERROR", "object": {**status, "message": "too old resource version: 1 (2)"}}
            self._whole(200, json.dumps(event).encode() + b"\n")
        else:
            self._forward(body, fault)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

    def _forward(self, body: bytes, fault: Fault) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in BY_HOP}
        upstream = self.server.upstream
        connection = http.client.HTTPSConnection(
            "127.0.0.1", upstream.port, context=upstream.context, timeout=TIMEOUT_S
        )
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            if fault.lost == "answer":
                answer.read()
                self._hang_up()
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in BY_HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._stream(answer, fault.cut_after)
        except (OSError, http.client.HTTPException):  # the server is away
            self._hang_up()
        finally:
            connection.close()

    def _stream(self, answer: http.client.HTTPResponse, lines: int | None) -> None:
        while lines is None or lines > 0:
            part = answer.readline() if lines is not None else answer.read1(65536)
            if not part:
                self.wfile.write(b"0\r\n\r\n")
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            lines = None if lines is None else lines - 1
        self._hang_up()

    def _say(self, fault: Fault) -> None:
        reason = REASONS.get(fault.status, "Unknown")
        said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": fault.status}
        self._whole(
            fault.status, json.dumps({**said, "reason": reason, "message": fault.message}).encode(), fault.retry_after_s
        )

    def _whole(self, status: int, body: bytes, retry_after_s: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
