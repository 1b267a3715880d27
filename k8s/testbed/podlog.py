"""A container's log, and the kubelet's HTTPS address at which an API server asks for it."""

from __future__ import annotations

import datetime
import http.server
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

FOLLOW_S = 0.05  # how often a follower looks
QUERY = urllib.parse.parse_qs


class PodLog:
    """The lines of one container in a file, each after the time at which it ended (RFC 3339, nanoseconds)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def copy(self, stream: BinaryIO) -> None:
        """Take everything from the container's output to its end."""
        with self.path.open("ab", buffering=0) as file:
            for line in iter(stream.readline, b""):
                end = b"" if line.endswith(b"\n") else b"\n"
                file.write(stamp(time.time_ns()).encode() + b" " + line + end)
        self.complete = True

    def read(self, query: dict[str, str]) -> Iterator[bytes]:
        """Give the lines that the kubelet's query asks for: sinceTime, sinceSeconds, tailLines, timestamps, follow, limitBytes."""
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        for line in self._lines(query):
            shown = line if query.get("timestamps") == "true" else line.partition(b" ")[2]
            if left is not None:
                shown = shown[:left]
                left -= len(shown)
            yield shown
            if left == 0:
                return

    def _lines(self, query: dict[str, str]) -> Iterator[bytes]:
        since = query.get("sinceTime")
        first = _seconds(since) if since else 0.0
        if "sinceSeconds" in query:
            first = time.time() - int(query["sinceSeconds"])
        with self.path.open("rb") as file:
            lines = [line for line in _whole_lines(file) if _seconds(line.split(b" ", 1)[0].decode()) >= first]
            yield from lines[-int(query["tailLines"]) or len(lines) :] if "tailLines" in query else lines
            while query.get("follow") == "true":
                complete = self.complete  # before the last look
                yield from _whole_lines(file)
                if complete:
                    return
                time.sleep(FOLLOW_S)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline():
        if not line.endswith(b"\n"):  # it is being written
            file.seek(-len(line), 1)
            return
        yield line


def stamp(time_ns: int) -> str:
    """Give a time as the kubelet stamps lines."""
    seconds, rest = divmod(time_ns, 10**9)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text)).timestamp()


class LogServer:
    """The kubelet's address for logs; `find` gives the log of (namespace, pod, container), or says why there is none (LookupError)."""

    def __init__(self, port: int, pki: Path, find: Callable[[str, str, str], PodLog]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _answer(self, find)

            def log_message(self, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "server.crt", pki / "server.key")
        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, name="kubelet logs", daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        pass  # a client that went away


def _answer(handler: http.server.BaseHTTPRequestHandler, find: Callable[[str, str, str], PodLog]) -> None:
    address = urllib.parse.urlsplit(handler.path)
    query = {name: values[-1] for name, values in QUERY(address.query).items()}
    try:
        _, kind, namespace, pod, container = address.path.split("/")
        if kind != "containerLogs":
            raise LookupError(f"the test bed's kubelet serves logs, not {kind}")
        if query.get("previous") == "true":
            raise LookupError(f'previous terminated container "{container}" in pod "{pod}" not found')
        log = find(namespace, pod, container)
    except (ValueError, LookupError) as why:
        said = str(why.args[0] if why.args else why).encode()
        handler.send_response(400)
        handler.send_header("Content-Length", str(len(said)))
        handler.end_headers()
        handler.wfile.write(said)
        return
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for line in log.read(query):
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
    handler.wfile.write(b"0\r\n\r\n")
