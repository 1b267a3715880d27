"""Brings what the workers said in their pods into the run's folder: every line once, however often and by whomever it is read.

A pod's lines have their time as the kubelet stamps it; that and the place among lines of the same time name a line. What was
taken from a pod stands beside its attempt (`.pod<node>.json`) with the sizes of the files then, so that a reader who was
killed in the middle leaves nothing twice. Readers exclude each other for the moment of writing only.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.node import speech
from launcher.node.ending import read_object
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.node.record import write_json
from launcher.targets.base import Handle
from launcher.targets.kubernetes_client import Client, Declined, Object, Unanswered, path_of
from launcher.targets.kubernetes_sight import attempt_of, is_living, node_of

BY_JOBSET = "jobset"
"""Who wrote a result.json that no worker could write any more: {"by": "jobset"}."""
_AT_ONCE = 8  # pods read at the same time
_BATCH = 1 << 20  # bytes of a log that are written in one go
PATIENCE = 2.0
"""Seconds for one pod's log: a dead node must not hold up the others, and its lines can be read later."""
_REST_SECONDS = 0.2  # between two tries of a follower

Key = tuple[int, int, int]
"""(seconds, nanoseconds, place among lines of that time) of a line."""

_NOTHING: Key = (0, 0, 0)


@dataclass
class Taken:
    """What of one pod's log is in the run's folder. last: its newest line. done: the log is complete. sizes: of the files."""

    pod: str = ""
    last: Key = _NOTHING
    done: bool = False
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Source:
    """One pod, and where its words belong."""

    run: RunFolder
    attempt: int
    node: int
    namespace: str
    pod: Object

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def path(self) -> str:
        return path_of("Pod", self.namespace, self.pod["metadata"]["name"], "log")

    @property
    def note(self) -> Path:
        return note_file(self.run.attempt(self.attempt), self.node)


def note_file(attempt: AttemptFolder, node: int) -> Path:
    """What was taken of a node's pod."""
    return attempt.path / f".pod{node}.json"


def source(run: RunFolder, handle: Handle, pod: Object) -> _Source:
    """A pod of the run's JobSet."""
    return _Source(run, attempt_of(handle, pod), node_of(handle, pod), str(handle["namespace"]), pod)


def taken(attempt: AttemptFolder, node: int) -> Taken:
    """What is known of a node's pod; nothing yet, and a note that cannot be read, are the same."""
    data = read_object(note_file(attempt, node)) or {}
    try:
        seconds, nanos, place = (int(part) for part in data["last"])
        sizes = {str(name): int(size) for name, size in data["sizes"].items()}
        return Taken(str(data["pod"]), (seconds, nanos, place), bool(data["done"]), sizes)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Taken()


def bring(client: Client, run: RunFolder, handle: Handle, pods: Iterable[Object]) -> list[str]:
    """Read these pods' new lines; returns what could not be read now, one line each."""
    sources = [source(run, handle, pod) for pod in pods]
    wanted = [one for one in sources if not _is_done(one) and _has_begun(one.pod)]
    if len(wanted) < 2:
        return [said for one in wanted if (said := _read(client, one))]
    from concurrent.futures import ThreadPoolExecutor  # not needed by most looks, and not light

    with ThreadPoolExecutor(_AT_ONCE) as readers:
        return [said for said in readers.map(lambda one: _read(client, one), wanted) if said]


def _is_done(one: _Source) -> bool:
    known = taken(one.run.attempt(one.attempt), one.node)
    return known.done and known.pod == one.uid


def _has_begun(pod: Object) -> bool:
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (s.get("state") or {}) or "terminated" in (s.get("state") or {}) for s in states)


def _read(client: Client, one: _Source) -> str:
    """All that is there now; empty, or why it could not be read."""
    try:
        _take_all(client, one, follow=False, ended=not is_living(one.pod))
    except (OSError, Declined) as error:
        return "" if _is_no_log(error) else f"the log of pod {one.pod['metadata']['name']} cannot be read now: {error}"
    return ""


def _is_no_log(error: Exception) -> bool:
    """A pod that is gone, or whose container has not begun."""
    return isinstance(error, Declined) and error.status in (400, 404)


def _take_all(
    client: Client, one: _Source, *, follow: bool, ended: bool, opened: threading.Event | None = None
) -> None:
    last = taken(one.run.attempt(one.attempt), one.node).last
    query = {"timestamps": "true", "container": one.pod["spec"]["containers"][0]["name"]}
    if last != _NOTHING:
        query["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last[0]))
    if follow:
        query["follow"] = "true"
    lines: list[tuple[Key, str]] = []
    size = 0
    reader = _Stamps()
    chunks = client.stream(one.path, query, patience=PATIENCE)
    for chunk in _announced(chunks, opened):
        new = reader.feed(chunk)
        lines += new
        size += len(chunk)
        if follow or size > _BATCH:
            write(one, lines, done=False)
            lines, size = [], 0
    write(one, lines + (reader.rest() if ended else []), done=ended)


def _announced(chunks: Iterator[bytes], opened: threading.Event | None) -> Iterator[bytes]:
    for chunk in chunks:
        if opened is not None:
            opened.set()
        yield chunk


class _Stamps:
    """Cuts a log's bytes into lines, each with its key."""

    def __init__(self) -> None:
        self._left = b""
        self._time, self._place = (0, 0), 0

    def feed(self, data: bytes) -> list[tuple[Key, str]]:
        *lines, self._left = (self._left + data).split(b"\n")
        return [keyed for line in lines if (keyed := self._keyed(line)) is not None]

    def rest(self) -> list[tuple[Key, str]]:
        """The last line, which nobody has ended."""
        keyed = self._keyed(self._left) if self._left else None
        return [keyed] if keyed is not None else []

    def _keyed(self, line: bytes) -> tuple[Key, str] | None:
        stamp, _, text = line.partition(b" ")
        try:
            seconds, nanos = moment(stamp.decode("ascii"))
        except ValueError:
            return None  # no line of the container: the kubelet's own word, e.g. that the log has been rotated away
        self._place = self._place + 1 if (seconds, nanos) == self._time else 1
        self._time = (seconds, nanos)
        return (seconds, nanos, self._place), text.decode("utf-8", "replace")


def moment(stamp: str) -> tuple[int, int]:
    """Seconds and nanoseconds of a kubelet's time: RFC 3339 with any number of digits, Z or an offset.

    >>> moment("1970-01-01T00:01:00.5Z"), moment("1970-01-01T01:00:00.000000007+01:00")
    ((60, 500000000), (0, 7))
    """
    whole, rest = stamp[:19], stamp[19:]
    digits = ""
    if rest.startswith("."):
        digits = rest[1:].rstrip("Z").partition("+")[0].partition("-")[0]
        rest = rest[1 + len(digits) :]
    seconds = datetime.fromisoformat(whole + rest).timestamp()
    return int(seconds), int(digits.ljust(9, "0")[:9] or 0)


def write(one: _Source, lines: Iterable[tuple[Key, str]], *, done: bool) -> None:
    """Put new lines where they belong: ranks' and the worker's into their logs, records into their files."""
    attempt = one.run.attempt(one.attempt)
    with _only_one(one.run):
        known = taken(attempt, one.node)
        if known.pod != one.uid:
            known = Taken(one.uid, _NOTHING, False, known.sizes)
        new = [(key, text) for key, text in lines if key > known.last]
        if not new and done == known.done:
            return
        attempt.path.mkdir(parents=True, exist_ok=True)
        texts: dict[str, list[str]] = {}
        for key, text in new:
            record = speech.parse(text)
            if record is not None:
                _keep(one, record)
            else:
                name, words = _place(attempt, one.node, text)
                texts.setdefault(name, []).append(words)
            known.last = max(known.last, key)
        for name, words_of in texts.items():
            known.sizes[name] = _append(attempt.path / name, known.sizes.get(name), "".join(f"{w}\n" for w in words_of))
        known.done = known.done or done
        note: dict[str, Any] = {"pod": known.pod, "last": known.last, "done": known.done, "sizes": known.sizes}
        write_json(one.note, note)


def _place(attempt: AttemptFolder, node: int, text: str) -> tuple[str, str]:
    """The log's name, and the words in it."""
    who, words = speech.label(text) or ("worker", text)
    return (attempt.worker_log(node) if who == "worker" else attempt.rank_log(int(who))).name, words


def _append(path: Path, size: int | None, text: str) -> int:
    """Appends behind what is known to be complete; returns the new size."""
    with open(path, "ab") as file:
        if size is not None and file.tell() > size:
            file.truncate(size)
        file.write(text.encode())
        file.flush()
        return os.fstat(file.fileno()).st_size


def _keep(one: _Source, record: speech.Record) -> None:
    """Write a record's file. What an attempt itself said stands; a later one only fills in what nobody heard."""
    path = record.path(one.run)
    is_own = record.attempt is None or record.attempt == one.attempt
    if is_own or _may_fill(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record.content)


def _may_fill(path: Path) -> bool:
    return not path.exists() or (path.name == "result.json" and (read_object(path) or {}).get("by") == BY_JOBSET)


@contextmanager
def _only_one(run: RunFolder) -> Iterator[None]:
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / ".bring", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The last words of a pod that is being deleted: they go with it, so somebody has to listen until it ends.

_followers: dict[tuple[str, str], threading.Thread] = {}
"""(JobSet's uid, pod's uid) -> who listens to it."""
_MOST_FOLLOWERS = 64  # streams that one process keeps open; the logs of more pods are read now and then


def listen(client: Client, run: RunFolder, handle: Handle, pod: Object, seconds: float) -> None:
    """Follow the pod's log to its end, in the background and for at most so long; returns once the log is open."""
    one, key = source(run, handle, pod), (str(handle["uid"]), str(pod["metadata"]["uid"]))
    if is_heard(handle, pod) or len(_followers) >= _MOST_FOLLOWERS or not _has_begun(pod) or _is_done(one):
        return
    opened = threading.Event()
    thread = threading.Thread(target=_follow, args=(client, one, opened, time.monotonic() + seconds), daemon=True)
    _followers[key] = thread
    thread.start()
    opened.wait(PATIENCE)


def _follow(client: Client, one: _Source, opened: threading.Event, deadline: float) -> None:
    ended = False
    while time.monotonic() < deadline:
        try:
            _take_all(client, one, follow=True, ended=ended, opened=opened)
            if ended:
                break
        except Unanswered:
            pass  # cut or silent: again, from the last line that was written
        except (Declined, OSError):
            break  # the pod is gone, or the run's folder cannot be written to
        opened.set()
        ended = _has_ended(client, one)  # then once more, to the very end
        time.sleep(_REST_SECONDS)
    opened.set()


def _has_ended(client: Client, one: _Source) -> bool:
    try:
        pod = client.get(path_of("Pod", one.namespace, one.pod["metadata"]["name"]), patience=PATIENCE)
    except (Unanswered, Declined):
        return False
    return pod is not None and not is_living(pod)


def is_heard(handle: Handle, pod: Object) -> bool:
    """Whether somebody in this process listens to the pod."""
    thread = _followers.get((str(handle["uid"]), str(pod["metadata"]["uid"])))
    return thread is not None and thread.is_alive()


def hear_out(handle: Handle, pods: Iterable[Object], seconds: float = 10.0) -> None:
    """Wait until the followers of this JobSet's pods that are gone, or have ended, have written down the last word."""
    living = {str(pod["metadata"]["uid"]) for pod in pods if is_living(pod)}
    for key, thread in list(_followers.items()):
        if key[0] == handle["uid"] and key[1] not in living:
            thread.join(seconds)
        if not thread.is_alive():
            _followers.pop(key, None)
