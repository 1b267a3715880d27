"""Trainer output on its way to the logs and the terminal, in bounded memory."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from pathlib import Path

LINE_LIMIT = 16 * 1024  # bytes; what is longer goes on as another line
BACKLOG_LIMIT = 1 << 20  # bytes that wait for a terminal which is not read (Ctrl-S, a stopped pager)


class LineSplitter:
    """Cuts a byte stream into text lines, whatever the pieces in which it comes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes, without newlines; bytes that are no UTF-8 become U+FFFD."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        while len(self._rest) > LINE_LIMIT:
            lines.append(self._rest[:LINE_LIMIT])
            self._rest = self._rest[LINE_LIMIT:]
        return [_text(line) for line in lines]

    def close(self) -> list[str]:
        """The last line, if it had no newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", errors="replace")


class Console:
    """Standard output that never holds up the trainer: what cannot be written now waits, and too much is dropped.

    The rank logs on disk are complete either way. With `quiet`, nothing is written.
    """

    def __init__(self, descriptor: int | None, quiet: bool) -> None:
        self._descriptor = None if quiet else descriptor
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0

    def say(self, line: str) -> None:
        """Queues one line and writes what the terminal takes."""
        if self._descriptor is None:
            return
        data = (line + "\n").encode("utf-8", errors="replace")
        if self._size + len(data) > BACKLOG_LIMIT:
            self._dropped += 1
            return
        if self._dropped:
            note = f"[worker] {self._dropped} line(s) not shown: nobody read; the rank logs have them\n".encode()
            self._waiting.append(note)
            self._size += len(note)
            self._dropped = 0
        self._append(data)

    def keep(self, line: str) -> None:
        """Queues one line that must not be lost, whatever waits already."""
        if self._descriptor is not None:
            self._append((line + "\n").encode("utf-8", errors="replace"))

    def _append(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        self.flush(0)

    def flush(self, seconds: float) -> None:
        """Writes what waits, giving the reader at most `seconds` at a time."""
        while self._waiting and self._descriptor is not None:
            try:
                poller = select.poll()
                poller.register(self._descriptor, select.POLLOUT)
                if not poller.poll(seconds * 1000):
                    return
                # A pipe that polls writable takes PIPE_BUF bytes without blocking.
                written = os.write(self._descriptor, self._waiting[0][: select.PIPE_BUF])
            except OSError:
                self._descriptor = None  # the reader is gone: training goes on without one
                return
            self._size -= written
            if written == len(self._waiting[0]):
                self._waiting.popleft()
            else:
                self._waiting[0] = self._waiting[0][written:]


def standard_output(quiet: bool) -> Console:
    """The process's own standard output as a Console."""
    try:
        return Console(sys.stdout.fileno(), quiet)
    except (AttributeError, ValueError, OSError):  # started without one
        return Console(None, quiet)


class Journal:
    """The worker's own words: to its log with the time (UTC), and to the terminal as `[worker] ...`."""

    def __init__(self, path: Path, console: Console) -> None:
        self._path = path
        self._console = console

    def say(self, text: str) -> None:
        """Writes one line; a log that cannot be written is no reason to stop training."""
        self._console.say(f"[worker] {text}")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with open(self._path, "a", encoding="utf-8", errors="replace") as log:
                log.write(f"{stamp} {text}\n")
        except OSError:
            pass
