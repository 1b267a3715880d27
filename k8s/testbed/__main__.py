"""The command line of the test bed: `python3 -m k8s.testbed VERB [options]`; see README.md."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from k8s.testbed.controller import Controller
from k8s.testbed.errors import TestbedError
from k8s.testbed.install import find_kubectl, install
from k8s.testbed.server import START_S, ApiServer

STOP_S = 60.0


def main(words: list[str]) -> int:
    """Run one verb. Exit codes: 0 done, 1 not (status: not up), 2 a wrong command line; of `kubectl`, its own."""
    options = parser().parse_args(words)
    try:
        return int(VERBS[options.verb](options) or 0)
    except TestbedError as why:
        print(f"k8s.testbed: {why}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Give the parser: one subcommand a verb."""
    default = Path(os.environ.get("K8S_TESTBED_DIR") or Path(tempfile.gettempdir()) / "k8s-testbed").absolute()
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dir", type=Path, default=default, help="the cluster's folder ($K8S_TESTBED_DIR; %(default)s)")
    top = argparse.ArgumentParser(
        prog="python3 -m k8s.testbed", description="A Kubernetes cluster on this machine, for tests."
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    verbs.add_parser("install", help="build the API server (minutes; once); $K8S_TESTBED_CACHE says where it is kept")
    for verb, meaning in (
        ("start", "start the cluster in the background"),
        ("serve", "start it, until Ctrl-C or SIGTERM"),
    ):
        one = verbs.add_parser(verb, parents=[where], help=meaning)
        one.add_argument("--nodes", type=int, default=8, help="nodes, which take one pod each (%(default)s)")
        one.add_argument("--rack", type=int, default=18, help="nodes in an NVLink rack (%(default)s)")
        one.add_argument(
            "--label", action="append", default=[], metavar="KEY=VALUE", help="a label of every node; can be repeated"
        )
        one.add_argument(
            "--image",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a variable of every image; can be repeated",
        )
        one.add_argument(
            "--claim", default="runs", help="the persistent volume claim, kept in DIR/volume (%(default)s)"
        )
    for verb, meaning in SIMPLE.items():
        verbs.add_parser(verb, parents=[where], help=meaning)
    one = verbs.add_parser("kubectl", parents=[where], help="kubectl with this cluster's credentials")
    one.add_argument("words", nargs=argparse.REMAINDER)
    return top


SIMPLE = {
    "env": 'the shell\'s settings: eval "$(python3 -m k8s.testbed env)"',
    "status": "whether the cluster is up; exit code 1 if not",
    "stop": "end every process of the cluster; its folder stays, and so do its objects",
    "clean": "stop, and remove the cluster's folder",
}


def _serve(options: argparse.Namespace) -> int:
    folder = options.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pid").open("a+") as pid:
        if not _lock(pid):
            raise TestbedError(f"the cluster in {folder} is up: python3 -m k8s.testbed stop --dir {folder}")
        pid.truncate(0)
        pid.write(str(os.getpid()))
        pid.flush()
        over: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: over.append(received))
        how = {"nodes": options.nodes, "rack": options.rack, "claim": options.claim}
        labels, image = (dict(one.split("=", 1) for one in given) for given in (options.label, options.image))
        with (
            ApiServer(folder) as server,
            Controller(server, folder / "volume", labels=labels, image=image, **how) as cluster,
        ):
            (folder / "ready").touch()
            told = 0
            while not over:
                time.sleep(0.2)
                for error in cluster.errors[told:]:
                    print(error, file=sys.stderr, flush=True)
                told = len(cluster.errors)
        (folder / "ready").unlink()
    return 0


def _start(options: argparse.Namespace) -> None:
    folder = options.dir.absolute()
    if _pid(folder):
        print(f"was up: {folder}/kubeconfig")
        return
    install()  # here, so that what it has to say is seen
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ready").unlink(missing_ok=True)
    begin = time.monotonic()
    words = [sys.executable, "-m", "k8s.testbed", "serve", "--dir", str(folder)]
    for name in ("nodes", "rack", "claim"):
        words += [f"--{name}", str(getattr(options, name))]
    for name in ("label", "image"):
        words += [word for value in getattr(options, name) for word in (f"--{name}", value)]
    root = Path(__file__).resolve().parents[2]
    with (folder / "serve.log").open("wb") as log:
        serving = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=root, start_new_session=True
        )
    while not (folder / "ready").exists():
        if serving.poll() is not None or time.monotonic() - begin > START_S:
            said = (folder / "serve.log").read_text(encoding="utf-8", errors="replace").strip()
            raise TestbedError(f"the cluster did not start: {said[-800:]}")
        time.sleep(0.1)
    print(
        f"Kubernetes with {options.nodes} nodes: up in {time.monotonic() - begin:.1f} s; KUBECONFIG={folder}/kubeconfig"
    )


def _stop(options: argparse.Namespace) -> None:
    folder = options.dir.absolute()
    pid = _pid(folder)
    if pid:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _pid(folder):
        if time.monotonic() > deadline:
            raise TestbedError(f"the cluster's process {pid} did not end within {STOP_S:.0f} s of SIGTERM")
        time.sleep(0.05)


def _clean(options: argparse.Namespace) -> None:
    folder = options.dir.absolute()
    _stop(options)
    if folder.exists() and not (folder / "kubeconfig").exists():
        raise TestbedError(f"{folder} is no cluster's folder (no kubeconfig in it): not removed")
    shutil.rmtree(folder, ignore_errors=True)


def _env(options: argparse.Namespace) -> None:
    _require(options)
    kubectl = find_kubectl()
    path = f' PATH={shlex.quote(str(kubectl.parent))}:"$PATH"' if kubectl else ""
    print(f"export KUBECONFIG={shlex.quote(str(options.dir.absolute() / 'kubeconfig'))}{path}")


def _status(options: argparse.Namespace) -> int:
    folder = options.dir.absolute()
    pid = _pid(folder)
    print(f"up: process {pid}, {folder}/kubeconfig" if pid else f"not up: {folder}")
    return 0 if pid else 1


def _kubectl(options: argparse.Namespace) -> int:
    _require(options)
    words = ["--kubeconfig", str(options.dir.absolute() / "kubeconfig"), *options.words]
    return subprocess.run([str(install().kubectl), *words]).returncode


def _require(options: argparse.Namespace) -> None:
    if not _pid(options.dir.absolute()):
        raise TestbedError(f"no cluster is up in {options.dir}: python3 -m k8s.testbed start --dir {options.dir}")


def _pid(folder: Path) -> int | None:
    """Give the process that serves the folder, known by the lock that it holds: a number alone may be another's by now."""
    try:
        with (folder / "pid").open("r+") as file:
            return None if _lock(file) else int(file.read() or 0)
    except FileNotFoundError:
        return None


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


VERBS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "install": lambda _: print(install().apiserver),
    "start": _start,
    "serve": _serve,
    "stop": _stop,
    "clean": _clean,
    "env": _env,
    "status": _status,
    "kubectl": _kubectl,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
