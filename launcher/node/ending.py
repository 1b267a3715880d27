"""How an attempt on several nodes ended, from the files that its workers left and, where they left none, from srun's words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from . import step
from .checkpoints import committed_steps
from .codes import Code, exit_code_of
from .layout import AttemptFolder
from .steps import parse_step

_TAIL = 1 << 20  # bytes of a rank's log that are looked through for its last step


@dataclass(frozen=True)
class Facts:
    """What one attempt's folder tells. results, started: each node's JSON by its index. failure: failure.json.

    hosts: the nodes of the step in SLURM's order; empty when they are no longer known. rc: srun's, None = unknown.
    """

    results: dict[int, dict[str, Any]]
    started: dict[int, dict[str, Any]]
    failure: Optional[dict[str, Any]]
    log: Sequence[str]
    hosts: Sequence[str] = ()
    rc: Optional[int] = None

    def host(self, node: Optional[int]) -> str:
        """SLURM's name of a node, else the name that its worker gave."""
        if node is None:
            return ""
        if 0 <= node < len(self.hosts):
            return self.hosts[node]
        return str(self.started.get(node, {}).get("host", ""))


@dataclass(frozen=True)
class End:
    """The end of an attempt. code, reason: as result.json has them. host: the node to blame. suspects: to do without."""

    code: int
    reason: str
    host: str = ""
    suspects: tuple[str, ...] = ()


def read_facts(attempt: AttemptFolder, hosts: Sequence[str] = (), rc: Optional[int] = None) -> Facts:
    """The facts in an attempt's folder; files that are missing or half written count as not there."""
    results: dict[int, dict[str, Any]] = {}
    started: dict[int, dict[str, Any]] = {}
    for path in sorted(attempt.path.iterdir()) if attempt.path.is_dir() else ():
        for found, first, stem in ((results, "result", "node"), (started, "attempt", "attempt-node")):
            node = _node_of(path.name, first, stem)
            data = read_object(path) if node is not None else None
            if node is not None and data is not None:
                found[node] = data
    log = step.lines_of(srun_log(attempt))
    return Facts(results, started, read_object(attempt.failure), log, hosts, rc)


def srun_log(attempt: AttemptFolder) -> Path:
    """What srun and, through it, the workers' errors said."""
    return attempt.path / "srun.log"


def _node_of(name: str, first: str, stem: str) -> Optional[int]:
    """The node whose file it is: result.json and node<i>.json, attempt.json and attempt-node<i>.json."""
    if name == f"{first}.json":
        return 0
    number = name[len(stem) : -len(".json")] if name.startswith(stem) and name.endswith(".json") else ""
    return int(number) if number.isdigit() else None


def read_object(path: Path) -> Optional[dict[str, Any]]:
    """The object in a JSON file, or None when there is none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def judge(facts: Facts) -> End:
    """The attempt's end. Node 0's word counts, unless another node knows better why all were stopped."""
    return by_words(facts) or _without_words(facts)


def by_words(facts: Facts) -> Optional[End]:
    """The attempt's end by what its workers said; None when none of them explains it."""
    return _by_node_0(facts) or _by_failure(facts) or _by_others(facts)


def unsaid(what: str, checkpoint: Optional[int]) -> End:
    """The end of an attempt that no worker explains. what: how it ended. Going on from a checkpoint is no failure yet."""
    saved = "there is no checkpoint" if checkpoint is None else f"the newest checkpoint is of step {checkpoint}"
    return End(int(Code.PREEMPTED if checkpoint is not None else 1), f"{what}; {saved}")


def is_late(facts: Facts) -> bool:
    """Whether node 0's result may still come, over a shared file system that shows it late: nothing killed its worker."""
    is_killed = any(facts.host(0) in dead.hosts and "exit code" not in dead.what for dead in step.deaths(facts.log))
    return 0 in facts.started and 0 not in facts.results and not is_killed


def _by_node_0(facts: Facts) -> Optional[End]:
    """What node 0 says for the whole attempt; not that it was stopped, if another node failed and caused that."""
    own = facts.results.get(0)
    if own is None or "code" not in own:
        return None
    code, reason = int(own["code"]), str(own.get("reason", ""))
    if code in (Code.FINISHED, Code.OVERFLOW, Code.DIVERGED, Code.CONFIG_REFUSED):
        return End(code, reason)
    if facts.failure is not None:
        return _by_failure(facts)
    if code == Code.BAD_NODE:
        return _bad_node(facts, 0, reason)
    worse = _by_others(facts)
    if worse is not None:
        return worse
    dead = _killed_worker(facts)
    return dead or End(code, reason)


def _by_failure(facts: Facts) -> Optional[End]:
    """The first failure that a worker reported while the others still ran."""
    if facts.failure is None or "code" not in facts.failure:
        return None
    node = facts.failure.get("node")
    host = facts.host(node if isinstance(node, int) else None) or str(facts.failure.get("host", ""))
    code, reason = int(facts.failure["code"]), f"node {node} ({host}): {facts.failure.get('reason', '')}"
    suspects = (host,) if code == Code.BAD_NODE and host else ()
    return End(code, reason, host, suspects)


def _by_others(facts: Facts) -> Optional[End]:
    """Another node's result that explains the end: it cannot run there, or nobody can run this."""
    for node, result in sorted(facts.results.items()):
        code, reason = result.get("code"), str(result.get("reason", ""))
        if node and code == Code.CONFIG_REFUSED:
            return End(code, f"node {node} ({facts.host(node)}): {reason}", facts.host(node))
        if node and code == Code.BAD_NODE:
            return _bad_node(facts, node, reason)
    return None


def _bad_node(facts: Facts, node: int, reason: str) -> End:
    host = facts.host(node)
    return End(int(Code.BAD_NODE), f"node {node} ({host}): {reason}", host, (host,) if host else ())


def _killed_worker(facts: Facts) -> Optional[End]:
    """A worker that died without a word (SIGKILL, out of memory), which made srun end the others."""
    for dead in step.first_dead(facts.log)[:1]:
        for host in dead.hosts:
            node = facts.hosts.index(host) if host in facts.hosts else None
            if node is not None and node in facts.started and node not in facts.results:
                return End(1, f"the worker on node {node} ({host}) ended without a word: {dead.what}", host)
    return None


def _without_words(facts: Facts) -> End:
    """No worker wrote a result: all were killed, or none began."""
    said = step.reason_in(facts.log)
    if facts.started:
        dead = _killed_worker(facts)
        if dead is not None:
            return dead
        missing = [host for node, host in enumerate(facts.hosts) if node not in facts.started]
        if missing:
            reason = f"no worker began on {', '.join(missing[:8])}: {said or 'srun said nothing'}"
            return End(int(Code.BAD_NODE), reason, missing[0], _minority(missing, facts.hosts))
        code = facts.rc if facts.rc and facts.rc not in list(Code) else 1
        return End(exit_code_of(code), f"the workers left no result: {said or 'they were killed'}")
    deaths = step.first_dead(facts.log)
    suspects = _minority(sorted({host for dead in deaths for host in dead.hosts}), facts.hosts)
    reason = f"no worker began: {said or f'srun ended with exit code {facts.rc} and said nothing'}"
    return End(int(Code.BAD_NODE), reason, suspects[0] if suspects else "", suspects)


def _minority(suspects: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """The suspects, unless they are half of the nodes or more: then it is not the nodes' fault."""
    return tuple(suspects) if 2 * len(suspects) < len(hosts) else ()


def last_step(attempt: AttemptFolder) -> Optional[int]:
    """The last step in rank 0's log; for an attempt whose worker could not say."""
    try:
        with open(attempt.rank_log(0), "rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _TAIL))
            lines = log.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        found = parse_step(line)
        if found is not None:
            return found.step
    return None


def newest_checkpoint(folder: Optional[Path]) -> Optional[int]:
    """The newest committed checkpoint in a local folder; None when there is none, or it lies on remote storage."""
    steps = committed_steps(folder) if folder is not None else []
    return steps[-1] if steps else None
