"""What a cluster with JobSet and NVIDIA's DRA driver does to their objects as they come in: defaults, and refusals of changes.

The API server asks over HTTPS, as it asks the JobSet controller's own webhooks (pkg/webhooks/jobset_webhook.go). The rules of the
definitions themselves (x-kubernetes-validations, which a server of 1.20 does not know) are here too, as far as they are about changes:
`self == oldSelf`. Names and the rest of what the real webhook checks at creation are not.
"""

from __future__ import annotations

import base64
import copy
import http.server
import json
import ssl
import threading
from pathlib import Path
from typing import Any

from k8s.testbed.client import Client, Object, Refused

IMMUTABLE = ("successPolicy", "failurePolicy", "startupPolicy", "network", "volumeClaimPolicies")
# While a JobSet is suspended, Kueue (and a user) may set these of its pod templates.
SCHEDULING = (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector"), ("spec", "tolerations"))
GATES = ("spec", "schedulingGates")
NAMES = {"mutating": "mjobset.kb.io", "validating": "vjobset.kb.io"}
GROUP = "/apis/admissionregistration.k8s.io/v1"
TIMEOUT_S = 30
Refusal = tuple[int, str]  # HTTP status and message


def with_defaults(jobset: Object) -> Object:
    """Give a JobSet as the webhook leaves it at creation."""
    new: Object = copy.deepcopy(jobset)
    spec = new["spec"]
    spec.setdefault("successPolicy", {"operator": "All"})
    for switch in ("enableDNSHostnames", "publishNotReadyAddresses"):
        spec.setdefault("network", {}).setdefault(switch, True)
    for replicated in spec.get("replicatedJobs", ()):
        job = replicated["template"].setdefault("spec", {})
        job.setdefault("completionMode", "Indexed")
        job.setdefault("template", {}).setdefault("spec", {}).setdefault("restartPolicy", "OnFailure")
    return new


def refusal(kind: str, old: Object, new: Object) -> Refusal | None:
    """Say why an object must not be changed so, or None."""
    if kind == "ComputeDomain":
        return (422, "spec: Invalid value: A computeDomain.spec is immutable") if old["spec"] != new["spec"] else None
    for field in IMMUTABLE:
        if field in old["spec"] and old["spec"].get(field) != new["spec"].get(field):
            return 422, f"spec.{field}: Invalid value: Value is immutable"
    if _fixed(old, old) != _fixed(old, new):
        return 403, "spec.replicatedJobs: Invalid value: field is immutable"
    if old["spec"].get("managedBy") != new["spec"].get("managedBy"):
        return 403, "spec.managedBy: Invalid value: field is immutable"
    return None


def _fixed(old: Object, jobset: Object) -> Any:
    """Give the replicated jobs without what may be changed now."""
    jobs = copy.deepcopy(jobset["spec"].get("replicatedJobs", []))
    if old["spec"].get("suspend"):
        for replicated in jobs:
            pod = replicated["template"]["spec"]["template"]
            for part, field in (*SCHEDULING, GATES):
                pod.get(part, {}).pop(field, None)
            if not pod.get("metadata"):
                pod.pop("metadata", None)
    return jobs


class Webhooks:
    """Answers an API server at `port` of loopback."""

    def __init__(self, port: int, pki: Path) -> None:
        self.port = port
        self._authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "server.crt", pki / "server.key")
        self._server = _Listener(("127.0.0.1", port), _Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, name="webhooks", daemon=True).start()

    def register(self, client: Client) -> None:
        """Tell the server of them. Errors: Refused, OSError."""
        every = [("jobset.x-k8s.io", "v1alpha2", "jobsets"), ("resource.nvidia.com", "v1beta1", "computedomains")]
        for way, kinds, when in (("validating", every, "UPDATE"), ("mutating", every[:1], "CREATE")):
            rules = [
                {"apiGroups": [g], "apiVersions": [v], "resources": [r], "operations": [when]} for g, v, r in kinds
            ]
            hook = {
                "name": NAMES[way],
                "rules": rules,
                "clientConfig": {"url": f"https://127.0.0.1:{self.port}/{way}", "caBundle": self._authority},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": TIMEOUT_S,
            }
            path, name = f"{GROUP}/{way}webhookconfigurations", "testbed"
            try:
                client.create(path, {"metadata": {"name": name}, "webhooks": [hook]})
            except Refused as why:
                if why.reason != "AlreadyExists":
                    raise
                client.merge(f"{path}/{name}", {"webhooks": [hook]})

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        pass  # the API server went away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        answer: Object = {"uid": request["uid"], "allowed": True}
        if self.path.startswith("/mutating"):
            spec = with_defaults(request["object"])["spec"]
            patch = json.dumps([{"op": "replace", "path": "/spec", "value": spec}])
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
        elif why := refusal(request["kind"]["kind"], request["oldObject"], request["object"]):
            reason = "Invalid" if why[0] == 422 else "Forbidden"
            answer |= {"allowed": False, "status": {"code": why[0], "reason": reason, "message": why[1]}}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
