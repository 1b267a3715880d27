"""HTTPS to one Kubernetes API server, patiently: a busy, restarting or briefly unreachable server costs time, not an answer.

The official client reads the kubeconfig (certificates, tokens, exec plug-ins, proxies) and brings the connection pool; the
requests are made here, because only plain JSON, server-side apply and log streams are needed, and because the generated
methods turn each answer into objects (seconds for some hundred pods) and drop what a server-side apply created.
`import kubernetes` takes half a second (measured, 37.0.2; no part of it is lighter), so it happens when a cluster is asked.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from launcher.issue import Issue, Refused, Severity

if TYPE_CHECKING:
    import urllib3

FIELD_MANAGER = "launcher"
"""Whose fields ours are, for server-side apply."""

READ_SECONDS = 15.0
"""How long a question is repeated while the server is overloaded or away: one that restarts is back within 10 s (measured)."""
WRITE_SECONDS = 60.0
"""The same for what changes something: every write here may be repeated, it is done once."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""A followed log is asked for anew after this: a connection that a proxy has cut without a word looks just as silent."""
_PAGE = 500  # objects in one answer of a list, as kubectl asks
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_TOLD = (
    0.25,
    4.0,
    30.0,
)  # seconds between two tries; at most what Retry-After may ask
_AGAIN = frozenset({429, 500, 502, 503, 504})
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""What an object is called, without what is in it: for secrets."""

Query = Mapping[str, str]
Object = dict[str, Any]


class Unanswered(OSError):
    """The API server gave no answer that tells anything; the text says which server and what was seen."""


class Declined(OSError):
    """The API server's no; an OSError, so that whoever forgets it shows no traceback.

    status: HTTP's. reason: Kubernetes' word, e.g. NotFound. causes: field by field, where it says."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.message = " ".join(str(body.get("message") or f"HTTP status {status}").split())
        details = body.get("details")
        self.causes: list[dict[str, str]] = list((details.get("causes") if isinstance(details, dict) else None) or ())
        super().__init__(self.message)


@dataclass(frozen=True)
class Answer:
    """status: HTTP's, 2xx. body: the object. tries: how many requests it took; more than one = an answer may have been lost."""

    status: int
    body: Object
    tries: int


def is_installed() -> bool:
    """Whether this Python has the Kubernetes client."""
    return find_spec("kubernetes") is not None


def missing() -> Issue:
    """What to say where it has not."""
    return _issue(
        "KUBERNETES_MISSING",
        "target",
        "the Python that runs the launcher has no kubernetes client",
        "python3 -m pip install 'launcher[kubernetes]'",
    )


@dataclass(frozen=True)
class _Ask:
    """One request. kind: the media type that is sent, or wanted of a GET. patience: seconds for all its tries."""

    method: str
    path: str
    query: Query
    body: Object | None = None
    kind: str = "application/json"
    patience: float = READ_SECONDS
    is_streamed: bool = False


class Client:
    """One context of the kubeconfig. context: its name, empty inside a pod. namespace: the context's own."""

    def __init__(self, context: str, namespace: str, configuration: Any, pool: urllib3.PoolManager) -> None:
        self.context, self.namespace = context, namespace
        self.server = str(configuration.host).rstrip("/")
        self._configuration, self._pool = configuration, pool

    def get(self, path: str, *, accept: str = "application/json", patience: float = READ_SECONDS) -> Object | None:
        """One object; None where there is none. Raises Unanswered, Declined."""
        try:
            return self._asked(_Ask("GET", path, {}, kind=accept, patience=patience)).body
        except Declined as declined:
            if declined.status == 404:
                return None
            raise

    def list_all(self, path: str, query: Query, *, patience: float = READ_SECONDS) -> list[Object]:
        """All objects of a list, page by page; from the start again when the server has forgotten the page (410)."""
        deadline = time.monotonic() + patience
        found: list[Object] = []
        more = ""
        while True:
            page = {**query, "limit": str(_PAGE), **({"continue": more} if more else {})}
            try:
                body = self._asked(_Ask("GET", path, page, patience=patience)).body
            except Declined as declined:
                if declined.status != 410 or time.monotonic() > deadline:
                    raise
                found, more = [], ""
                continue
            found += body.get("items") or []
            more = str((body.get("metadata") or {}).get("continue") or "")
            if not more:
                return found

    def apply(self, path: str, document: Object, *, dry: bool = False) -> Answer:
        """Server-side apply as `launcher`, never forced. Raises Unanswered, Declined (409: somebody else's field)."""
        query = {"fieldManager": FIELD_MANAGER, "force": "false", "fieldValidation": "Strict"}
        if dry:
            query["dryRun"] = "All"
        patience = READ_SECONDS if dry else WRITE_SECONDS
        return self._asked(_Ask("PATCH", path, query, document, APPLY, patience))

    def merge(self, path: str, patch: Object, manager: str) -> Answer:
        """A merge patch; give it metadata.uid, and it changes that very object or nothing."""
        return self._asked(_Ask("PATCH", path, {"fieldManager": manager}, patch, MERGE, WRITE_SECONDS))

    def create(self, path: str, document: Object) -> Object:
        """POST, for reviews that are answered and not kept."""
        return self._asked(_Ask("POST", path, {}, document)).body

    def delete(self, path: str, options: Object | None = None, query: Query | None = None) -> bool:
        """Whether there was something to delete: that very object, where `options` has preconditions.uid."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **(options or {})}
        try:
            self._asked(_Ask("DELETE", path, query or {}, body, patience=WRITE_SECONDS))
        except Declined as declined:
            another = declined.status == 409 and "uid" in (body.get("preconditions") or {})
            if declined.status != 404 and not another:
                raise
            return False
        return True

    def stream(self, path: str, query: Query, *, patience: float) -> Iterator[bytes]:
        """The bytes of a log as they come. Raises Unanswered when it is cut or silent, Declined (400: nothing to read yet)."""
        import urllib3

        response = self._answer(_Ask("GET", path, query, kind="*/*", patience=patience, is_streamed=True))[0]
        try:
            yield from response.stream(1 << 16)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unanswered(f"the log was cut: {error}") from error
        finally:
            response.close()

    def _asked(self, ask: _Ask) -> Answer:
        response, tries = self._answer(ask)
        return Answer(response.status, _body(response.data), tries)

    def _answer(self, ask: _Ask) -> tuple[urllib3.BaseHTTPResponse, int]:
        """The first answer that says something, and how many requests it took."""
        deadline, pause, tries = time.monotonic() + ask.patience, _FIRST_PAUSE, 0
        while True:
            tries += 1
            told = 0.0
            response, said = self._try(ask)
            if response is not None and response.status < 300:
                return response, tries
            if response is not None:
                status, answer = response.status, _body(response.data)
                said = f"{answer.get('message') or response.reason or ''} (HTTP {status})".strip()
                if status == 401:
                    raise Unanswered(
                        f"{self.server} does not know you (HTTP 401): log in again; `kubectl get pods` shows"
                    )
                if status not in _AGAIN and not _was_modified(status, answer):
                    raise Declined(status, answer)
                told = _told(response, answer)
            wait = min(max(pause, told), _LONGEST_TOLD)
            if time.monotonic() + wait > deadline:
                raise Unanswered(f"{self.server} does not answer: {' '.join(said.split())}")
            time.sleep(wait)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _try(self, ask: _Ask) -> tuple[urllib3.BaseHTTPResponse | None, str]:
        """An answer, whatever it says; or why there was none."""
        import urllib3

        headers = {"Accept": "application/json"}
        headers["Accept" if ask.method == "GET" else "Content-Type"] = ask.kind
        for setting in self._configuration.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        url = f"{self.server}{ask.path}" + (f"?{urlencode(ask.query)}" if ask.query else "")
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS if ask.is_streamed else ANSWER_SECONDS)
        data = None if ask.body is None else json.dumps(ask.body).encode()
        try:
            response = self._pool.request(
                ask.method,
                url,
                body=data,
                headers=headers,
                timeout=timeout,
                retries=False,
                preload_content=not ask.is_streamed,
            )
        except urllib3.exceptions.SSLError as error:
            raise Unanswered(f"{self.server} cannot be trusted: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return None, _short(error)
        if ask.is_streamed and response.status >= 300:
            response.read(cache_content=True)
        return response, ""


def path_of(kind: str, namespace: str, name: str = "", sub: str = "") -> str:
    """The path of an object, or of a kind's list.

    >>> path_of("Pod", "ml", "demo-w-0-0-x1", "log")
    '/api/v1/namespaces/ml/pods/demo-w-0-0-x1/log'
    """
    group, plural = KINDS[kind]
    parts = [group, "namespaces", quote(namespace, safe=""), plural, *([quote(name, safe="")] if name else [])]
    return "/".join([*parts, *([sub] if sub else [])])


KINDS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "ComputeDomain": ("/apis/resource.nvidia.com/v1beta1", "computedomains"),
    "Event": ("/api/v1", "events"),
    "Job": ("/apis/batch/v1", "jobs"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Pod": ("/api/v1", "pods"),
    "Secret": ("/api/v1", "secrets"),
}
"""kind -> (the path of its API, its plural)."""


_clients: dict[tuple[str, str], Client] = {}


def connect(context: str = "") -> Client:
    """A client for that context of the kubeconfig; empty = the current one, or inside a pod that of its service account.

    Raises Refused: no client library, no kubeconfig, no such context.
    """
    file = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    known = _clients.get((file, context))
    if known is None:
        known = _clients[file, context] = _open(file, context)
    return known


def _open(file: str, context: str) -> Client:
    if not is_installed():
        raise Refused(missing())
    import yaml
    from kubernetes import config
    from kubernetes.client import ApiClient, Configuration

    configuration = Configuration()
    if not any(Path(part).is_file() for part in file.split(os.pathsep)):
        if not os.environ.get("KUBERNETES_SERVICE_HOST"):
            message = f"there is no kubeconfig: {file}"
            raise Refused(
                _issue("KUBECONFIG", "target", message, "export KUBECONFIG=..., or have your cluster's tool write one")
            )
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        namespace = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        return Client("", namespace, configuration, ApiClient(configuration).rest_client.pool_manager)
    try:
        contexts, current = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The client's own code trips over a file of another kind: its words would say nothing.
        why = "it is no kubeconfig" if isinstance(error, (TypeError, AttributeError)) else " ".join(str(error).split())
        message = f"{file} cannot be used: {why}"
        raise Refused(_issue("KUBECONFIG", "target", message, "`kubectl config view` shows what is in it")) from error
    wanted = context or (current or {}).get("name", "")
    chosen = [entry for entry in contexts if entry["name"] == wanted]
    if not chosen:
        names = ", ".join(sorted(entry["name"] for entry in contexts)) or "none"
        message = f"{file} has no context {wanted!r}; there is: {names}"
        how = "type target.kubernetes.context=NAME of one that is there; null takes the current one"
        raise Refused(_issue("KUBE_CONTEXT", "target.kubernetes.context", message, how))
    try:
        with _complaints() as complaints:
            config.load_kube_config(file, context=wanted, client_configuration=configuration)  # type: ignore[no-untyped-call]
        if complaints:
            raise ValueError("; ".join(complaints))
    except Exception as error:  # a plug-in that logs in may fail in any way
        message = f"context {wanted} of {file} cannot be used: {_short(error)}"
        raise Refused(_issue("KUBECONFIG", "target", message, f"kubectl --context {wanted} get pods")) from error
    namespace = chosen[0]["context"].get("namespace") or "default"
    return Client(wanted, namespace, configuration, ApiClient(configuration).rest_client.pool_manager)


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What is logged as an error meanwhile: of a login plug-in that fails the client says nothing else, and goes on as nobody."""
    told: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    root, ear = logging.getLogger(), Ear(logging.ERROR)
    kept = root.handlers[:]
    root.handlers[:] = [ear]
    try:
        yield told
    finally:
        root.handlers[:] = kept


def _body(data: bytes) -> Object:
    try:
        body = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode("utf-8", "replace")}
    return body if isinstance(body, dict) else {}


def _was_modified(status: int, answer: Mapping[str, Any]) -> bool:
    """A write that met another one and is to be repeated; other conflicts stay."""
    return status == 409 and "the object has been modified" in str(answer.get("message"))


def _told(response: urllib3.BaseHTTPResponse, answer: Mapping[str, Any]) -> float:
    """Seconds that the server asks to wait."""
    details = answer.get("details")
    said = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    said = str(response.headers.get("Retry-After") or said)
    return float(said) if said.isdigit() else 0.0


def _short(error: BaseException) -> str:
    """The innermost reason: urllib3 nests several, each with an object's address."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException) and getattr(reason, "reason", None):
        reason = reason.reason  # type: ignore[attr-defined]
    text = str(reason if isinstance(reason, BaseException) else error)
    return " ".join(text.rpartition(": ")[2].split() if "object at 0x" in text else text.split())


def _issue(code: str, field: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, field, message, hint)
