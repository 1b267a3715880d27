"""A chat's webhook on this machine: a real HTTP server that keeps what is posted to it, and answers as it is told."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "T0000-B0000-never-to-be-told"
"""The part of the URL that must show nowhere; made up."""


class Chat(ThreadingHTTPServer):
    """Answers each POST with the next of `answers` (200 when there is none left) and keeps what was posted."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = deque()
        self.posts = []
        self.gate = threading.Event()
        self.gate.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"

    @property
    def lines(self):
        return [line for post in self.posts for line in post["text"].splitlines()]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.gate.wait(30)
        answer = self.server.answers.popleft() if self.server.answers else 200
        if answer == 200:
            assert self.headers["Content-Type"] == "application/json"
            self.server.posts.append(json.loads(body))
        if answer == "nonsense":
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
            return
        self.send_response(answer)
        self.send_header("Location", self.path + "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass
