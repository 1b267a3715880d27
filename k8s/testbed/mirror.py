"""Keeps a copy of one collection of objects, as a controller's informer does: list, watch, and list again when a watch is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

from k8s.testbed.client import Client, Gone, Object, Refused, Watch

PAUSE_S = 0.2  # before another try at a server that does not answer
STOP_S = 2.0


class Mirror:
    """The objects of the collection `path`, by uid; `changed` is called after every change."""

    def __init__(self, client: Client, path: str, changed: Callable[[], None]) -> None:
        self.path = path
        self.listed = threading.Event()
        self._client, self._changed = client, changed
        self._objects: dict[str, Object] = {}
        self._gone: set[str] = set()  # uids; a late answer must not bring one back
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watching: Watch | None = None
        self._thread = threading.Thread(target=self._follow, name=f"mirror {path}", daemon=True)

    def start(self) -> None:
        """Begin to follow, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more, and wait for the thread's end."""
        self._stopping.set()
        if self._watching is not None:
            self._watching.close()
        if self._thread.ident:
            self._thread.join(STOP_S)

    def all(self) -> list[Object]:
        """Give the objects, the oldest first."""
        with self._lock:
            return sorted(
                self._objects.values(), key=lambda o: (o["metadata"]["creationTimestamp"], o["metadata"]["name"])
            )

    def get(self, uid: str) -> Object | None:
        """Give the object as it was last seen, or None."""
        with self._lock:
            return self._objects.get(uid)

    def named(self, name: str) -> Object | None:
        """Give the object of that name, or None."""
        return next((one for one in self.all() if one["metadata"]["name"] == name), None)

    def put(self, found: Object) -> None:
        """Take note of an answer of the server, so that what was just written is seen at once."""
        uid = found["metadata"]["uid"]
        with self._lock:
            known = self._objects.get(uid)
            if uid not in self._gone and (known is None or _version(found) > _version(known)):
                self._objects[uid] = found
        self._changed()

    def drop(self, uid: str) -> None:
        """Take note that an object is gone."""
        with self._lock:
            self._gone.add(uid)
            self._objects.pop(uid, None)
        self._changed()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                version = self._list()
                while not self._stopping.is_set():
                    version = self._watch(version)
            except (OSError, Refused, Gone, ValueError):
                self._stopping.wait(PAUSE_S)
            except AttributeError:  # http.client's, when its connection is closed under it
                if not self._stopping.is_set():
                    raise

    def _list(self) -> str:
        answer = self._client.get(self.path)
        kind, api = answer["kind"].removesuffix("List"), answer["apiVersion"]
        found = {one["metadata"]["uid"]: {"kind": kind, "apiVersion": api, **one} for one in answer["items"]}
        for uid in [one["metadata"]["uid"] for one in self.all() if one["metadata"]["uid"] not in found]:
            self.drop(uid)
        for one in found.values():
            self.put(one)
        self.listed.set()
        version: str = answer["metadata"]["resourceVersion"]
        return version

    def _watch(self, version: str) -> str:
        self._watching = self._client.watch(self.path, version)
        for event, found in self._watching:
            version = found["metadata"]["resourceVersion"]
            if self._stopping.is_set():
                break
            if event == "DELETED":
                self.drop(found["metadata"]["uid"])
            elif event != "BOOKMARK":
                self.put(found)
        return version


def _version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])
