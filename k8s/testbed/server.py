"""One API server with its etcd, on loopback, in a folder of its own; JobSet and ComputeDomain are known to it."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from k8s.testbed import keep, pki
from k8s.testbed.admission import Webhooks
from k8s.testbed.client import Client, Object, Refused
from k8s.testbed.errors import TestbedError
from k8s.testbed.install import Binaries, install

DEFINITIONS = Path(__file__).resolve().parents[2] / "launcher/data/kubernetes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Below the kernel's ephemeral range (32768 and up), so that a stopped server's ports are still free when it starts again.
PORTS = range(12000, 30000)
START_S = 180.0  # a busy machine's; an idle one needs four
STOP_S = 2.0  # the server would wait a minute for its watchers; all that it knows is in etcd


class ApiServer:
    """kube-apiserver and etcd with their files in `folder`. As a context manager it starts and stops them."""

    def __init__(self, folder: Path, binaries: Binaries | None = None) -> None:
        self.folder = folder.absolute()
        self.pki = self.folder / "pki"
        self.kubeconfig = self.folder / "kubeconfig"
        self.port = 0
        self.etcd_port = self._hooks_port = 0
        self._binaries = binaries
        self._webhooks: Webhooks | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def binaries(self) -> Binaries:
        """The programs; built if they are not there. Errors: Unavailable, TestbedError."""
        if self._binaries is None:
            self._binaries = install()
        return self._binaries

    @property
    def client(self) -> Client:
        """Speaks with this server as its administrator."""
        return Client(self.port, self.pki)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.port}"

    # ---- life ----

    def start(self) -> ApiServer:
        """Start both and wait until they serve; what an earlier start in this folder has stored is there again. Errors: TestbedError."""
        if self._running:
            return self
        binaries = self.binaries
        self.folder.mkdir(parents=True, exist_ok=True)
        pki.make(self.pki)
        if not self.port:
            self.port, self.etcd_port, _, self._hooks_port = free_ports(4)
        self._webhooks = Webhooks(self._hooks_port, self.pki)
        self.kubeconfig.write_text(kubeconfig(self.address, self.pki, "admin"), encoding="utf-8")
        try:
            self._spawn("etcd", [str(binaries.etcd), *self._etcd_options()])
            self._spawn("kube-apiserver", [str(binaries.apiserver), *self._options()])
            self._wait_ready()
            self._register()
            self._webhooks.register(self.client)
            self._wait_defaults()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End both, the server first; the folder stays."""
        for name in ("kube-apiserver", "etcd"):
            self._end(name)
        if self._webhooks:
            self._webhooks.stop()
            self._webhooks = None

    def restart(self, down_s: float = 0.0) -> None:
        """Stop the server, not etcd, for `down_s` seconds and start it again at the same address: all objects are there still."""
        self._end("kube-apiserver")
        time.sleep(down_s)
        self._spawn("kube-apiserver", [str(self.binaries.apiserver), *self._options()])
        self._wait_ready()

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- use ----

    def kubectl(self, *words: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator. Errors: TestbedError with what it said, if `check` and its exit code is not 0."""
        home = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        command = [str(self.binaries.kubectl), "--kubeconfig", str(self.kubeconfig), *words]
        done = subprocess.run(command, input=input, capture_output=True, text=True, env=home)
        if check and done.returncode != 0:
            raise TestbedError(f"kubectl {' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-1500:]}")
        return done

    def kubeconfig_of(self, user: str, group: str = "nobody") -> Path:
        """Give a kubeconfig of another user, who may do what RBAC says: nothing, until a role is bound to the user or the group."""
        pki.client(self.pki, user, group)
        path = self.folder / f"kubeconfig-{user}"
        path.write_text(kubeconfig(self.address, self.pki, user), encoding="utf-8")
        return path

    # ---- parts ----

    def _etcd_options(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.etcd_port + 1))
        return [
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _options(self) -> list[str]:
        p = self.pki
        return [
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--insecure-port=0",
            f"--tls-cert-file={p}/server.crt",
            f"--tls-private-key-file={p}/server.key",
            f"--client-ca-file={p}/ca.crt",
            f"--kubelet-client-certificate={p}/admin.crt",
            f"--kubelet-client-key={p}/admin.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={p}/sa.key",
            f"--service-account-key-file={p}/sa.pub",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged",
            # It would refuse every pod: nobody here makes the namespaces' default accounts and their tokens.
            "--disable-admission-plugins=ServiceAccount",
            "--shutdown-delay-duration=0s",
        ]

    def _spawn(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(keep.command(words), stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/")
        self._running[name] = process

    def _end(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        if process.stdin:
            process.stdin.close()  # the leash: what has not ended is killed
        process.wait()

    def _wait_ready(self) -> None:
        deadline, client = time.monotonic() + START_S, self.client
        while True:
            with contextlib.suppress(OSError, Refused):
                if client.get("/readyz") == "ok":
                    return
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise TestbedError(f"{name} ended with exit code {process.returncode}: {self._said(name)}")
            if time.monotonic() > deadline:
                raise TestbedError(f"the API server is not ready after {START_S:.0f} s: {self._said('kube-apiserver')}")
            time.sleep(0.05)

    def _wait_defaults(self) -> None:
        """Wait until the server asks the webhooks: a JobSet that is tried gets its defaults."""
        jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "try"}, "spec": {}}
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(Refused):
                if "network" in self.client.request("POST", path, jobset, query={"dryRun": "All"})["spec"]:
                    return
            if time.monotonic() > deadline:
                raise TestbedError(f"the server asks no webhook after {START_S:.0f} s: {self._said('kube-apiserver')}")
            time.sleep(0.1)

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()[-800:]

    def _register(self) -> None:
        """Make the custom resources known, and wait until they are served and kubectl's schema has them."""
        waiting, client = [], self.client
        for path in sorted(DEFINITIONS.glob("*.json")):
            definition = json.loads(path.read_text(encoding="utf-8"))
            try:
                client.create(CRDS, older(definition))
            except Refused as why:
                if why.reason != "AlreadyExists":  # as it is in a folder that was used before
                    raise
            spec = definition["spec"]
            kind, version = spec["names"]["kind"], spec["versions"][0]["name"]
            waiting.append((f"/apis/{spec['group']}/{version}/{spec['names']['plural']}", f'"kind":"{kind}"'))
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, Refused):
                for collection, _ in waiting:
                    client.get(collection)
                schema = json.dumps(client.get("/openapi/v2"), separators=(",", ":"))
                if all(kind in schema for _, kind in waiting):
                    return
            if time.monotonic() > deadline:
                raise TestbedError(f"the custom resources are not served after {START_S:.0f} s")
            time.sleep(0.3)  # the schema is big, and made anew each second at most


def older(definition: Object) -> Object:
    """Give a custom resource's definition as Kubernetes 1.20 takes it.

    It knows no rules in CEL, refuses a default of "" that the type's own rules forbid, and wants the keys of a list-map required.
    """
    mended: Object = copy.deepcopy(definition)
    _mend(mended)
    return mended


def _mend(value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _mend(one)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("x-kubernetes-validations"), list):
        del value["x-kubernetes-validations"]
    if value.get("default") == "" and "type" in value:
        del value["default"]
    if "items" in value:
        item = value["items"]
        for key in value.get("x-kubernetes-list-map-keys", ()):
            if not item["properties"].get(key, {}).get("default") and key not in item.setdefault("required", []):
                item["required"].append(key)
    for one in value.values():
        _mend(one)


def kubeconfig(address: str, folder: Path, user: str) -> str:
    """Give a kubeconfig for one cluster and one user, whose certificates are in `folder`."""
    cluster = {"server": address, "certificate-authority": f"{folder}/ca.crt"}
    credentials = {"client-certificate": f"{folder}/{user}.crt", "client-key": f"{folder}/{user}.key"}
    return json.dumps(  # which is YAML too
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user, "namespace": "default"}}],
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
        },
        indent=1,
    )


def free_ports(count: int) -> list[int]:
    """Give a run of ports on loopback that nobody listens on."""
    for _ in range(100):
        first = random.randrange(PORTS.start, PORTS.stop - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise TestbedError(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
