"""The proxy does what it is told, once as often as told, and otherwise passes everything on; the command line has a life."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.testbed.client import Client, Gone
from k8s.testbed.faults import Fault, Proxy
from k8s.testbed.server import ApiServer

ROOT = Path(__file__).resolve().parents[2]
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def proxy(kube: ApiServer, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(kube, tmp_path) as proxy:
        yield proxy


def serving(folder: str) -> list[str]:
    """The command lines of processes that have the folder in them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [words] if folder in words else []
    return found


def through(proxy: Proxy, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return proxy.server.kubectl(
        "--kubeconfig", str(proxy.kubeconfig), "--cache-dir", str(proxy.kubeconfig.parent), *words, **how
    )


def test_without_a_fault_all_passes(proxy: Proxy) -> None:
    through(proxy, "create", "configmap", "passes", "--from-literal=a=1")
    assert json.loads(through(proxy, "get", "configmap", "passes", "-o", "json").stdout)["data"] == {"a": "1"}
    assert proxy.count("POST", f"{MAPS}(\\?|$)") == 1


def test_a_status_comes_as_often_as_told(proxy: Proxy) -> None:
    fault = proxy.inject(Fault("GET", "configmaps/answered", status=500, times=2, message="etcdserver: leader changed"))
    for _ in range(2):
        said = through(proxy, "get", "configmap", "answered", check=False).stderr
        assert "etcdserver: leader changed" in said
    assert fault.times == 0
    assert "NotFound" in through(proxy, "get", "configmap", "answered", check=False).stderr


def test_a_lost_answer_is_of_a_request_that_was_done_and_a_lost_request_of_none(proxy: Proxy, kube: ApiServer) -> None:
    proxy.inject(Fault("POST", MAPS, lost="answer"))
    assert through(proxy, "create", "configmap", "done", check=False).returncode == 1
    assert kube.client.get(f"{MAPS}/done")["metadata"]["name"] == "done"
    proxy.inject(Fault("POST", MAPS, lost="request", times=-1))
    assert through(proxy, "create", "configmap", "undone", check=False).returncode == 1
    assert "NotFound" in kube.kubectl("get", "configmap", "undone", check=False).stderr


def test_a_watch_is_cut_and_expires(proxy: Proxy, kube: ApiServer) -> None:
    client = Client(proxy.port, kube.pki)
    version = client.get(MAPS)["metadata"]["resourceVersion"]
    for index in range(3):
        client.create(MAPS, {"metadata": {"name": f"watched-{index}"}})
    proxy.inject(Fault("GET", "watch=true", expired=True))
    with pytest.raises(Gone, match="too old resource version"):
        list(client.watch(MAPS, version))
    proxy.inject(Fault("GET", "watch=true", cut_after=2))
    events = iter(client.watch(MAPS, version))
    assert [next(events)[1]["metadata"]["name"] for _ in range(2)] == ["watched-0", "watched-1"]
    assert list(events) == []
    whole = iter(client.watch(MAPS, version))
    assert [next(whole)[1]["metadata"]["name"] for _ in range(3)][-1] == "watched-2"
    proxy.break_off()
    assert list(whole) == []


def test_down_refuses_and_up_serves_again(proxy: Proxy) -> None:
    proxy.down()
    assert "refused" in through(proxy, "get", "ns", check=False).stderr
    proxy.up()
    assert "default" in through(proxy, "get", "ns").stdout


def test_the_command_line_starts_a_cluster_that_outlives_it_and_ends_it(kube: ApiServer, tmp_path: Path) -> None:
    def say(*words: str, code: int = 0) -> str:
        done = subprocess.run([sys.executable, "-m", "k8s.testbed", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    where = ("--dir", str(tmp_path / "cluster"))
    assert "no cluster is up" in say("kubectl", *where, "get", "nodes", code=1)
    try:
        assert "up in" in say("start", *where, "--nodes", "2", "--label", "a=b")
        assert "was up" in say("start", *where)
        assert say("kubectl", *where, "get", "nodes", "-l", "a=b", "-o", "name").split() == [
            "node/default-n0",
            "node/default-n1",
        ]
        assert "kubeconfig" in say("env", *where)
        pid = int(say("status", *where).split()[2].rstrip(","))
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while left := serving(str(tmp_path)):
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.1)
    finally:
        say("clean", *where)
    assert "not up" in say("status", *where, code=1)
    assert not (tmp_path / "cluster").exists()
