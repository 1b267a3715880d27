"""Speaks with an API server: plain HTTPS and JSON, so that what the tests see owes nothing to the client library that they test."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Object = dict[str, Any]
MERGE, APPLY, JSON_PATCH = (
    f"application/{kind}" for kind in ("merge-patch+json", "apply-patch+yaml", "json-patch+json")
)
TIMEOUT_S = 20
WATCH_S = 3600


class Refused(Exception):
    """The server's answer was an error: `code` is the HTTP status, `reason` Kubernetes' word for it (NotFound, Conflict, ...)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


class Gone(Exception):
    """A watch cannot go on from where it was; list anew."""


class Client:
    """The server at `host`:`port`, with the credentials in `pki`. A connection a request: nothing is shared between threads."""

    def __init__(self, port: int, pki: Path, user: str = "admin") -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self.context.load_cert_chain(pki / f"{user}.crt", pki / f"{user}.key")

    def get(self, path: str, **query: str) -> Any:
        """Give the object or the list at `path`. Errors: Refused, OSError."""
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Object) -> Any:
        """POST `body` to the collection `path`. Errors: Refused (409 if it is there), OSError."""
        return self.request("POST", path, body)

    def merge(self, path: str, body: Object) -> Any:
        """Change what `body` names, by JSON merge patch. Errors: Refused, OSError."""
        return self.request("PATCH", path, body, kind=MERGE)

    def delete(self, path: str, grace_s: int | None = None, uid: str | None = None) -> Any:
        """Delete one object, only the one of `uid` if given. Errors: Refused, OSError."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        return self.request("DELETE", path, body)

    def request(
        self,
        method: str,
        path: str,
        body: Object | list[Any] | None = None,
        *,
        kind: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Any:
        """Send one request and give the answer: JSON's value, else text. Errors: Refused, OSError."""
        connection = self._connect(TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, _with(path, query), data, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status >= 400:
                raise _refusal(answer.status, text)
            return json.loads(text) if text.startswith("{") else text  # /openapi/v2 is text by its header
        except http.client.HTTPException as why:
            raise ConnectionError(f"{method} {path}: {why!r}") from why
        finally:
            connection.close()

    def watch(self, path: str, version: str) -> Watch:
        """Give what happens to the collection after `version`, to be iterated once."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        return Watch(self._connect(WATCH_S), _with(path, query))

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=timeout_s)


class Watch:
    """A stream of (ADDED | MODIFIED | DELETED | BOOKMARK, object); it ends with its connection. Errors: Gone, Refused, OSError."""

    def __init__(self, connection: http.client.HTTPSConnection, path: str) -> None:
        self._connection, self._path = connection, path

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        try:
            self._connection.request("GET", self._path)
            answer = self._connection.getresponse()
            if answer.status >= 400:
                raise _refusal(answer.status, answer.read().decode(errors="replace"))
            for line in iter(answer.readline, b""):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Gone(event["object"].get("message", ""))
                yield event["type"], event["object"]
        except http.client.HTTPException as why:
            raise ConnectionError(f"{self._path}: {why!r}") from why
        finally:
            self._connection.close()

    def close(self) -> None:
        """End it, from another thread."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _with(path: str, query: dict[str, str] | None) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def _refusal(code: int, text: str) -> Refused:
    try:
        status = json.loads(text)
        return Refused(code, status.get("reason", ""), status.get("message", ""))
    except ValueError:
        return Refused(code, "", text.strip()[:300])
