"""A small cluster behind an API server: the controllers, a scheduler and a kubelet, as threads of this process."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from k8s.testbed import jobsets, nodes
from k8s.testbed.client import APPLY, Object, Refused
from k8s.testbed.errors import TestbedError
from k8s.testbed.kubelet import Kubelet, Machine, Pod
from k8s.testbed.rules import ENDED, RESTART, index_of, now, phase_of
from k8s.testbed.server import ApiServer, free_ports
from k8s.testbed.world import STRATEGIC, World, collect

TICK_S = 1.0  # how often to look when nothing has changed: for deadlines
PAUSE_S = 0.3  # after the API server did not answer
AWAY = (429, 500, 503, 504)  # answers of a server that is starting, ending, or without its etcd


class Controller:
    """Plays the cluster in one namespace of `server`; its pods end with this process.

    volume     the folder that plays every claim; the claim named `claim` exists, others are as the test makes them
    nodes      as many nodes, one pod each, in racks of `rack` nodes; `labels` are put on every one of them
    image      what the container image's ENV would give: variables that the manifest's own win over
    python     what `python3` and `python` in a container are (this Python)
    folder     for the pods' own files and logs (beside the server's)
    """

    def __init__(
        self,
        server: ApiServer,
        volume: Path,
        *,
        namespace: str = "default",
        claim: str = "runs",
        nodes: int = 8,
        rack: int = 18,
        labels: dict[str, str] | None = None,
        image: dict[str, str] | None = None,
        python: str = sys.executable,
        folder: Path | None = None,
    ) -> None:
        self.server, self.namespace, self.volume = server, namespace, volume.absolute()
        self.folder = (folder or server.folder / "cluster" / namespace).absolute()
        self.errors: list[str] = []  # of this test bed's own, each a traceback
        self._claim, self._count, self._rack, self._labels = claim, nodes, rack, labels or {}
        self._machine = Machine(self.volume, self.folder, self.folder / "programs", image or {})
        self._python = python
        self._held: str | None = None
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._nodes: list[Object] = []
        self._world = World(server.client, namespace, self._wake.set)
        self._kubelet: Kubelet | None = None
        self._thread = threading.Thread(target=self._run, name=f"cluster {namespace}", daemon=True)

    # ---- life ----

    def start(self) -> Controller:
        """Make the namespace, the claim and the nodes, and begin."""
        self._write_programs()
        client, world = self.server.client, self._world
        port = free_ports(1)[0]
        with contextlib.suppress(Refused):  # it is there
            client.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        with contextlib.suppress(Refused):
            client.create(claims, {"metadata": {"name": self._claim}, "spec": spec})
        self._nodes = nodes.make_nodes(
            client, self.namespace, self._count, per_rack=self._rack, port=port, labels=self._labels
        )
        self._kubelet = Kubelet(client, self._machine, port, self.server.pki, lambda: world.all("pods"))
        for mirror in world.mirrors.values():
            mirror.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End every container and remove the nodes; objects stay as they are."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        for mirror in self._world.mirrors.values():
            mirror.stop()
        if self._kubelet:
            self._kubelet.stop()
        for node in self._nodes:
            with contextlib.suppress(OSError, Refused):
                self.server.client.delete(f"{nodes.NODES}/{node['metadata']['name']}")

    def __enter__(self) -> Controller:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- what a test sees and does ----

    def pods(self, jobset: str | None = None, attempt: int | None = None) -> list[Object]:
        """Give the pods (of a JobSet, of its attempt 0, 1, ...), by Job and completion index."""
        found = self._world.all("pods")
        if jobset is not None:
            found = [pod for pod in found if pod["metadata"]["labels"].get("jobset.sigs.k8s.io/jobset-name") == jobset]
        if attempt is not None:
            found = [pod for pod in found if pod["metadata"]["labels"].get(RESTART) == str(attempt)]
        job = "batch.kubernetes.io/job-name"
        return sorted(found, key=lambda pod: (pod["metadata"]["labels"].get(job, ""), index_of(pod)))

    def jobset(self, name: str) -> Object | None:
        """Give the JobSet, or None."""
        return self._world.mirrors["jobsets"].named(name)

    def folder_of(self, pod: str) -> Path:
        """Give the folder of a pod's own files: `log`, `volumes/NAME`."""
        return self.folder / pod

    def evict(self, pod: str, reason: str = "EvictionByEvictionAPI", message: str = "Eviction API: evicting") -> None:
        """Take a pod from its node as maintenance does: the condition DisruptionTarget, then deletion with the pod's own grace."""
        path = self._world.path("pods", pod)
        one = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        patch = {"status": {"conditions": [{**one, "lastTransitionTime": now()}]}}
        self.server.client.request("PATCH", f"{path}/status", patch, kind=STRATEGIC)
        self.server.client.delete(path)

    def kill(self, pod: str, exit_code: int = 137, reason: str = "Error") -> None:
        """SIGKILL everything in a pod's container; it has failed with this exit code and reason (OOMKilled, ...)."""
        self._running(pod).kill(exit_code, reason)

    def hold(self, message: str) -> None:
        """Keep pods that are not bound yet Pending, for this reason."""
        self._held = message
        self._wake.set()

    def release(self) -> None:
        """Bind pods again."""
        self._held = None
        self._wake.set()

    def suspend(self, jobset: str, suspend: bool = True) -> None:
        """Suspend a JobSet, or let it go on, as Kueue does: it owns the field spec.suspend."""
        body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": jobset}}
        body["spec"] = {"suspend": suspend}
        query = {"fieldManager": "kueue", "force": "true"}
        self.server.client.request("PATCH", self._world.path("jobsets", jobset), body, kind=APPLY, query=query)

    def wait(self, what: Callable[[], object], limit_s: float = 120) -> None:
        """Wait until `what` gives something true. Errors: TestbedError after `limit_s` seconds, with how the pods are."""
        deadline = time.monotonic() + limit_s
        while not what():
            if time.monotonic() > deadline:
                how = ", ".join(f"{pod['metadata']['name']} {phase_of(pod)}" for pod in self._world.all("pods"))
                raise TestbedError(f"not within {limit_s:.0f} s; pods: {how or 'none'}; errors: {self.errors[-1:]}")
            time.sleep(0.05)

    def running(self, jobset: str, count: int) -> bool:
        """Say whether as many pods of the JobSet run now."""
        return sum(phase_of(pod) == "Running" for pod in self.pods(jobset)) == count

    def quiet(self) -> bool:
        """Say whether no pod runs or waits."""
        return all(phase_of(pod) in ENDED for pod in self._world.all("pods"))

    # ---- parts ----

    def _running(self, pod: str) -> Pod:
        if self._kubelet is None:
            raise TestbedError("the cluster was not started")
        return self._kubelet.named(pod)

    def _write_programs(self) -> None:
        """Put python3 and python on the containers' PATH: scripts, since a link to an environment's Python would leave the environment."""
        programs = self._machine.programs
        programs.mkdir(parents=True, exist_ok=True)
        self.volume.mkdir(parents=True, exist_ok=True)
        for name in ("python3", "python"):
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec "{self._python}" "$@"\n', encoding="utf-8")
            path.chmod(0o755)

    def _run(self) -> None:
        for mirror in self._world.mirrors.values():
            while not mirror.listed.wait(0.1) and not self._stopping.is_set():
                pass
        while not self._stopping.is_set():
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self._reconcile()
            except Exception as why:
                if not isinstance(why, OSError) and not (isinstance(why, Refused) and why.code in AWAY):
                    self.errors.append(traceback.format_exc())  # a test reads it; the cluster goes on
                self._stopping.wait(PAUSE_S)
                self._wake.set()

    def _reconcile(self) -> None:
        collect(self._world)
        for jobset in self._world.all("jobsets"):
            jobsets.reconcile(self._world, jobset)
        nodes.schedule(self._world, {node["metadata"]["name"] for node in self._nodes}, self._held)
        if self._kubelet:
            self._kubelet.sync()
