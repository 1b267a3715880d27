"""Messages to people, through a webhook of the kind that Slack and Mattermost take: a POST of {"text": ...}.

The URL is a secret: it lies in an environment variable alone, and a short child process reads it there, so that neither a
command line nor a log ever holds it. The child also waits for the network, which the one thread of a worker cannot do.
This file is also that child's program: `python telling.py VARIABLE`, the text on standard input.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import Optional

POST_SECONDS = 5.0  # of one try
PAUSES = (0.0, 1.0, 3.0)  # before each try; a busy server (429, 5xx) or a network that is away gets another one
GAP_SECONDS = 20.0  # between two messages: what is told meanwhile comes together in the next (Slack takes one a second)
CLOSE_SECONDS = 3.0  # that the last message gets at the end of an attempt, whose result is still to be written
ALL_SECONDS = 20.0  # and where nothing waits: all tries
TEXT_LIMIT = 3000  # characters of one message; Slack cuts at 40,000, and people read less
_WAITING = 20  # texts that wait for the next message; of more only the number is told
_MASK = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
"""What Slack wants escaped (api.slack.com, "Formatting text for app surfaces")."""


class Teller:
    """Tells what one run goes through. A Watcher (monitor.py): `look` sends and never waits; without a variable it is mute."""

    def __init__(self, variable: Optional[str], run: str, say: Callable[[str], None]) -> None:
        """`variable`: the name of the one that holds the URL. `say`: takes one line about a message that was lost."""
        self._variable = variable
        self._run = run
        self._say = say
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._next = 0.0

    def tell(self, text: str) -> None:
        """Queues one line."""
        if self._variable is None:
            return
        if len(self._waiting) < _WAITING:
            self._waiting.append(text)
        else:
            self._dropped += 1

    def line(self, rank: int, text: str, now: float) -> None:
        """What the trainers say is not told."""

    def look(self, now: float) -> None:
        """Sends what waits, when it is time. `now`: seconds of the monotonic clock."""
        if self._child is not None:
            if self._child.poll() is None:
                return
            self._end()
        if self._waiting and now >= self._next:
            self._next = now + GAP_SECONDS
            self._send()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Sends what is left, and waits for it so long; a child that is slower goes on by itself, if it is let."""
        deadline = time.monotonic() + seconds
        self._wait(deadline)
        if self._child is None and self._waiting:
            self._send()
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(max(0.0, deadline - time.monotonic()))
                self._end()

    def _send(self) -> None:
        lines = [f"{self._run}: {text}" for text in self._waiting]
        if self._dropped:
            lines.append(f"{self._run}: and {self._dropped} more, see `launcher events {self._run}`")
        self._waiting.clear()
        self._dropped = 0
        assert self._variable is not None
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-B", os.path.abspath(__file__), self._variable],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is not for it
            )
        except OSError as error:
            self._say(f"webhook: cannot start {sys.executable}: {error.strerror}")
            return
        assert self._child.stdin is not None
        with contextlib.suppress(OSError), self._child.stdin as pipe:  # a pipe takes a text this short at once
            pipe.write("\n".join(lines)[:TEXT_LIMIT].encode("utf-8", errors="replace"))

    def _end(self) -> None:
        child, self._child = self._child, None
        assert child is not None
        assert child.stderr is not None
        if child.returncode != 0:
            why = child.stderr.read(4096).decode("utf-8", errors="replace").strip().splitlines()
            self._say(f"webhook: a message was lost: {why[-1] if why else f'exit code {child.returncode}'}")
        child.stderr.close()


def tell_now(variable: Optional[str], run: str, text: str, say: Callable[[str], None]) -> None:
    """Tells one line and waits for it: some tenths of a second, with no network ALL_SECONDS at most."""
    teller = Teller(variable, run, say)
    teller.tell(text)
    teller.close(ALL_SECONDS)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the text."""

    def redirect_request(self, *_: object) -> None:
        return None


def post(url: str, text: str) -> str:
    """Posts one message; "" or why it failed, without a word of the URL."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        return "its value is no http:// or https:// URL"
    for old, new in _MASK:
        text = text.replace(old, new)
    body = json.dumps({"text": text}).encode()
    opener = urllib.request.build_opener(_NoRedirect)
    why = ""
    for pause in PAUSES:
        time.sleep(pause)
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with opener.open(request, timeout=POST_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            why = f"HTTP {error.code} {http.client.responses.get(error.code, '')}".rstrip()
            error.close()
            if error.code != http.client.TOO_MANY_REQUESTS and error.code < http.client.INTERNAL_SERVER_ERROR:
                break
        except urllib.error.URLError as error:
            why = getattr(error.reason, "strerror", None) or type(error.reason).__name__
        except (ValueError, http.client.InvalidURL) as error:
            return type(error).__name__  # its text holds the URL
        except (OSError, http.client.HTTPException) as error:
            why = type(error).__name__
    return why


def main(variable: str) -> int:
    """The child: posts standard input to the URL in that variable."""
    url = os.environ.get(variable, "").strip()
    if not url:
        print(f"the variable {variable} is not set here", file=sys.stderr)
        return 1
    try:
        why = post(url, sys.stdin.buffer.read().decode("utf-8", errors="replace"))
    except Exception as error:  # whatever it is, its text may hold the URL
        why = type(error).__name__
    if why:
        print(f"{why}; check the URL in ${variable}", file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
