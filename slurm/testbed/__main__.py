"""The command line of the test bed: `python3 -m slurm.testbed VERB [options]`; see README.md."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from slurm.testbed.cluster import Cluster
from slurm.testbed.install import install
from slurm.testbed.settings import VERSIONS, Settings, TestbedError, default_folder, default_prefix


def main(words: list[str]) -> int:
    """Run one verb. Exit codes: 0 done, 1 not (status: not up), 2 a wrong command line."""
    options = parser().parse_args(words)
    try:
        return int(VERBS[options.verb](options) or 0)
    except TestbedError as why:
        print(f"slurm.testbed: {why}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Give the parser: one subcommand a verb; every option that is left out keeps what the cluster was started with."""
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--dir", type=Path, default=default_folder(), help="the cluster's folder ($SLURM_TESTBED_DIR; %(default)s)"
    )
    where.add_argument(
        "--prefix", type=Path, default=default_prefix(), help="unpacked Slurms ($SLURM_TESTBED_PREFIX; %(default)s)"
    )
    size = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    size.add_argument("--version", choices=VERSIONS, help=f"the Slurm ({VERSIONS[0]})")
    size.add_argument("--nodes", type=int, help="running nodes n0, n1, ... (4)")
    size.add_argument("--racks", type=int, help="NVLink racks they stand in, equal ones (1)")
    size.add_argument("--gpus", type=int, help="pretended GPUs a node (4)")
    size.add_argument("--cpus", type=int, help="pretended CPUs a node (8)")
    size.add_argument("--cloud", type=int, help="more nodes c0, c1, ... in the books only, for sbatch --test-only (0)")
    size.add_argument("--port", type=int, help="the controller's port, the nodes' follow (0: free ones)")
    size.add_argument("--requeue-delay", type=int, help="seconds until a requeued job may start (120, as everywhere)")
    size.add_argument(
        "--hide", action="append", metavar="FOLDER", help="a folder that containers do not see; can be repeated"
    )
    size.add_argument(
        "--line", action="append", dest="lines", metavar="KEY=VALUE", help="a line more for slurm.conf; can be repeated"
    )
    top = argparse.ArgumentParser(
        prog="python3 -m slurm.testbed", description="A real Slurm of many nodes on this machine, for tests."
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("install", parents=[where], help="download and unpack a Slurm")
    one.add_argument("version", nargs="?", choices=VERSIONS, default=VERSIONS[0])
    verbs.add_parser(
        "start", parents=[where, size], help="start the cluster; one of the same settings that is up stays"
    )
    verbs.add_parser("restart", parents=[where, size], help="stop, then start; no job is remembered")
    for verb, meaning in SIMPLE.items():
        verbs.add_parser(verb, parents=[where], help=meaning)
    for verb, meaning in ON_A_NODE.items():
        one = verbs.add_parser(verb, parents=[where], help=meaning)
        one.add_argument("node")
        if verb == "drain":
            one.add_argument("reason")
    return top


SIMPLE = {
    "env": 'the shell\'s settings: eval "$(python3 -m slurm.testbed env)"',
    "status": "the nodes' states; exit code 1 if the cluster is not up",
    "stop": "end every process of the cluster; its folder stays",
    "clean": "stop, and remove the cluster's folder",
    "stop-controller": "stop slurmctld alone; jobs run on",
    "start-controller": "start slurmctld on its saved state",
}
ON_A_NODE = {
    "kill-daemon": "SIGKILL a node's slurmd; its jobs run on unseen",
    "crash": "SIGKILL all that runs on a node, as if its power had gone",
    "start-node": "start a node's slurmd again",
    "drain": "take no new jobs on a node, for a reason",
    "resume": "take jobs on a node again",
}


def _settings(options: argparse.Namespace) -> Settings:
    folder = options.dir.absolute()
    given = {k: v for k, v in vars(options).items() if k in {field.name for field in dataclasses.fields(Settings)}}
    given |= {key: tuple(given[key]) for key in ("hide", "lines") if key in given}
    return dataclasses.replace(Settings.load(folder) or Settings(folder), **given)


def _cluster(options: argparse.Namespace) -> Cluster:
    settings = Settings.load(options.dir.absolute())
    if settings is None:
        raise TestbedError(
            f"no cluster was started in {options.dir}: python3 -m slurm.testbed start --dir {options.dir}"
        )
    return Cluster(settings, options.prefix.absolute())


def _install(options: argparse.Namespace) -> None:
    print(install(options.version, options.prefix.absolute()).root)


def _start(options: argparse.Namespace) -> None:
    cluster = Cluster(_settings(options), options.prefix.absolute())
    seconds = cluster.start()
    s = cluster.settings
    what = f"Slurm {s.version}, {s.nodes} nodes x {s.gpus} GPUs in {s.racks} rack{'s' if s.racks > 1 else ''}"
    print(f"{what}: up in {seconds:.1f} s" if seconds else f"{what}: was up")


def _restart(options: argparse.Namespace) -> None:
    Cluster(_settings(options), options.prefix.absolute()).stop()
    _start(options)


def _env(options: argparse.Namespace) -> None:
    ours = _cluster(options).variables()
    print(f'export SLURM_CONF={shlex.quote(ours["SLURM_CONF"])} PATH={shlex.quote(ours["PATH"] + os.pathsep)}"$PATH"')


def _status(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    states = cluster.states()
    if not states:
        print("the controller does not answer")
        return 1
    for state, count in sorted(Counter(states.values()).items()):
        print(f"{state:12} {count:4}  {' '.join(name for name in states if states[name] == state)}")
    return 0 if cluster.ready() else 1


VERBS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "install": _install,
    "start": _start,
    "restart": _restart,
    "env": _env,
    "status": _status,
    "stop": lambda o: _cluster(o).stop(),
    "clean": lambda o: _cluster(o).clean(),
    "stop-controller": lambda o: _cluster(o).stop_controller(),
    "start-controller": lambda o: _cluster(o).start_controller(),
    "kill-daemon": lambda o: _cluster(o).kill_daemon(o.node),
    "crash": lambda o: _cluster(o).crash_node(o.node),
    "start-node": lambda o: _cluster(o).start_node(o.node),
    "drain": lambda o: _cluster(o).drain(o.node, o.reason),
    "resume": lambda o: _cluster(o).resume(o.node),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
