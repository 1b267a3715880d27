"""Runs the pods that are bound to the test bed's nodes, as local processes, and tells the API server how they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from k8s.testbed import container, keep
from k8s.testbed.client import Client, Object, Refused
from k8s.testbed.podlog import LogServer, PodLog
from k8s.testbed.rules import ENDED, now, phase_of
from k8s.testbed.world import STRATEGIC

RETRY_S = 0.3
LINGER_S = 1.0  # until a deleted pod's object goes after its container has ended: the kubelet looks once a second
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}  # every container has them


@dataclass(frozen=True)
class Machine:
    """What all pods share: the folder that plays every claim, a folder for the pods' own files, the image's programs and variables."""

    claim: Path
    folder: Path
    programs: Path
    image: dict[str, str] = field(default_factory=dict)


class Pod:
    """One pod on a node: a thread that starts its container, waits, and ends it when it is told to."""

    def __init__(self, pod: Object, client: Client, machine: Machine, others: Callable[[], list[Object]]) -> None:
        self.pod, self.name = pod, pod["metadata"]["name"]
        self.spec: Object = pod["spec"]["containers"][0]
        self.log = PodLog(machine.folder / self.name / "log")
        self.waiting = "ContainerCreating"
        self._client, self._machine, self._others = client, machine, others
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline: float | None = None  # of SIGKILL, once the pod is to end
        self._termed = False
        self._forced: tuple[int, str] | None = None  # exit code and reason that a test wants
        self._started = ""
        self._wake, self._over = threading.Event(), False
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    @property
    def path(self) -> str:
        """The pod's address in the API."""
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self.name}"

    @property
    def created(self) -> bool:
        """Whether there is, or was, a container."""
        return self._process is not None

    def end(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a shorter grace than before shortens it."""
        deadline = time.monotonic() + grace_s
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        self._wake.set()

    def kill(self, exit_code: int = 137, reason: str = "Error") -> None:
        """SIGKILL all processes of the container; it is reported with this exit code and reason."""
        self._forced = (exit_code, reason)
        self._signal(signal.SIGUSR1)

    def gone(self) -> None:
        """The pod is no longer in the API: kill without any report."""
        self._deadline, self._over = 0.0, True
        self._wake.set()

    def _live(self) -> None:
        code, reason = 137, "Error"
        if self._start():
            code, reason = self._wait()
        code, reason = self._forced or (code, reason)
        state = {"exitCode": code, "reason": reason, "startedAt": self._started or now(), "finishedAt": now()}
        phase = "Failed" if code else "Succeeded"
        self._report(phase, {"terminated": state}, ready=False)
        while self._deadline is None:
            self._wake.wait()
        if not self._over:
            time.sleep(LINGER_S)
        self._forever(lambda: self._client.delete(self.path, grace_s=0, uid=self.pod["metadata"]["uid"]))

    def _start(self) -> bool:
        """Create the container, trying again while something is missing; False if the pod is to end before, or its container is lost."""
        while self._deadline is None and phase_of(self.pod) != "Running":  # it ran under a cluster that was killed
            try:
                self._spawn()
                return True
            except container.NotYet as why:
                self.waiting = why.reason
                self._report("Pending", {"waiting": {"reason": why.reason, "message": str(why)}}, ready=False)
            except (OSError, Refused):
                pass  # the API server does not answer
            self._wake.wait(RETRY_S)
        return False

    def _spawn(self) -> None:
        space, home = self.pod["metadata"]["namespace"], self._machine.folder / self.name

        def read(collection: str, name: str) -> Object:
            found: Object = self._client.get(f"/api/v1/namespaces/{space}/{collection}/{name}")
            return found

        given = container.environment(self.pod, self.spec, read)
        folders = container.mounts(self.pod, self.spec, home, self._machine.claim, read)
        hosts = container.hosts_of([self.pod, *self._others()])
        words = [container.expand(word, given) for word in [*self.spec.get("command", ()), *self.spec.get("args", ())]]
        if not words:
            raise container.NotYet(
                "CreateContainerConfigError", "no command: the test bed has no images to take it from"
            )
        inside = {
            "PATH": f"{self._machine.programs}:{PATH}",
            "HOME": str(home),
            "HOSTNAME": self.pod["spec"].get("hostname", self.name),
        }
        inside |= SERVICE | self._machine.image | given
        inside = {name: container.translate(value, folders, hosts) for name, value in inside.items()}
        words = [container.translate(word, folders, hosts) for word in words]
        place = container.translate(self.spec.get("workingDir", str(home)), folders, hosts)
        # Found on the container's own PATH: the shim would look on its own.
        words[0] = shutil.which(words[0], path=inside["PATH"]) or words[0]
        self._process = subprocess.Popen(
            keep.command(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=place,
            env=inside,
        )
        self._started = now()

    def _wait(self) -> tuple[int, str]:
        """Follow the container to its end; give its exit code and Kubernetes' word for it."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        copying = threading.Thread(target=self.log.copy, args=(process.stdout,), daemon=True)
        copying.start()
        self._report("Running", {"running": {"startedAt": self._started}}, ready=True)
        while process.poll() is None:
            if self._deadline is not None:
                self._end_in_time()
            self._wake.wait(0.05) if self._deadline is None else time.sleep(0.02)
        copying.join()
        process.stdout.close()
        if process.stdin:
            process.stdin.close()
        code = process.returncode
        return (code if code >= 0 else 128 - code), "Completed" if code == 0 else "Error"

    def _end_in_time(self) -> None:
        if not self._termed:
            self._termed = True
            self._signal(signal.SIGTERM)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _report(self, phase: str, state: Object, *, ready: bool) -> None:
        word = "True" if ready else "False"
        conditions = [
            {"type": kind, "status": word, "lastTransitionTime": now()} for kind in ("Ready", "ContainersReady")
        ]
        conditions.append({"type": "Initialized", "status": "True", "lastTransitionTime": now()})
        one = {"name": self.spec["name"], "image": self.spec["image"], "imageID": "", "state": state}
        one |= {"ready": ready, "started": ready, "restartCount": 0}
        if self._process is not None:
            one["containerID"] = f"testbed://{self.pod['metadata']['uid']}"
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [one], "hostIP": container.ADDRESS}
        status |= {
            "podIP": container.ADDRESS,
            "podIPs": [{"ip": container.ADDRESS}],
            "startTime": self._started or now(),
        }
        patch = {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": status}
        self._forever(lambda: self._client.request("PATCH", f"{self.path}/status", patch, kind=STRATEGIC))

    def _forever(self, do: Callable[[], object]) -> None:
        """Try until the API server has taken it, or knows the pod no more."""
        while not self._over:
            try:
                do()
                return
            except Refused as why:
                if why.code in (404, 409, 422):
                    return
            except OSError:
                pass
            time.sleep(RETRY_S)


class Kubelet:
    """The pods of all nodes, and the address of their logs."""

    def __init__(
        self, client: Client, machine: Machine, port: int, pki: Path, pods: Callable[[], list[Object]]
    ) -> None:
        self._client, self._machine, self._pods = client, machine, pods
        self._running: dict[str, Pod] = {}
        self._logs = LogServer(port, pki, self._find)

    def sync(self) -> None:
        """Start what is bound and new, end what is being deleted, kill what is gone."""
        seen = {pod["metadata"]["uid"]: pod for pod in self._pods() if pod["spec"].get("nodeName")}
        for uid, pod in seen.items():
            ending = "deletionTimestamp" in pod["metadata"]
            if uid not in self._running and (ending or phase_of(pod) not in ENDED):
                self._running[uid] = Pod(pod, self._client, self._machine, self._pods)
            if ending:
                self._running[uid].end(pod["metadata"].get("deletionGracePeriodSeconds", 30))
        for uid in [uid for uid in self._running if uid not in seen]:
            self._running.pop(uid).gone()

    def named(self, name: str) -> Pod:
        """Give the running pod of that name. Errors: KeyError."""
        return next(pod for pod in list(self._running.values()) if pod.name == name)

    def stop(self) -> None:
        """Kill every container."""
        self._logs.stop()
        for pod in list(self._running.values()):
            pod.gone()

    def _find(self, namespace: str, name: str, container_name: str) -> PodLog:
        for pod in list(self._running.values()):
            if pod.name == name and pod.pod["metadata"]["namespace"] == namespace:
                if pod.created:
                    return pod.log
                said = f'container "{container_name}" in pod "{name}" is waiting to start: {pod.waiting}'
                raise LookupError(said)
        raise LookupError(f'pod "{name}" not found on this node')
