"""Are the nodes of a job fit, with no training after it (monitor.node_check=only): all of their reports put together.

Each node examines itself and leaves its report in the attempt's folder. Node 0 waits for all of them and says what they come
to; the others wait for node 0, so that none ends, and takes the others with it, while one is still being examined.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from .checkup import told
from .codes import Code, WorkerError, outcome_of
from .ending import read_object
from .health import FAIL
from .layout import AttemptFolder
from .said import Said
from .verdict import Verdict

Report = Mapping[str, Any]
Wait = Callable[[Callable[[], bool]], bool]
"""Waits until a condition holds, for as long as is right; False when a stop signal came before either."""

_LOOK = 2.0  # seconds between two looks: one listing a node on a shared file system
_SHOWN = 8  # nodes that the reason names
_FILE = re.compile(r"(health-)?node(\d{1,6})\.json")  # layout.py's names: of reports, and of the others' results
NO_ANSWER = "it gave no answer"


def waiting(seconds: float, is_stopped: Callable[[], bool]) -> Wait:
    """A Wait of at most `seconds`."""

    def wait(is_over: Callable[[], bool]) -> bool:
        end, looked = time.monotonic() + seconds, float("-inf")
        while True:
            now = time.monotonic()
            if now >= end or now - looked >= _LOOK:
                looked = now
                if is_over() or now >= end:  # the last look is at the end: what came before it counts
                    return True
            if is_stopped():
                return False
            time.sleep(0.1)

    return wait


def settle(attempt: AttemptFolder, node: int, nodes: int, own: Report, *, wait: Wait, said: Said) -> Optional[Verdict]:
    """What this node's worker ends with. `own`: its report, which is in the attempt's folder already.

    node 0: 0 when every node is fit, else 79 with the reasons; it also tells the others' reports again, since pods may be gone
    before they are heard; None when it was stopped before all had answered. Another one: by its own report alone.
    """
    start = str(own.get("start", ""))
    if node == 0:
        answers = Answers(attempt, start)
        if not wait(lambda: answers.look() >= nodes):
            return None
        for other in sorted(set(answers.reports) - {0}):
            said.file(attempt.health(other), answers.reports[other])
        return _of_all(attempt, answers.unfit(nodes), nodes)
    wait(lambda: (read_object(attempt.result()) or {}).get("start") == start)
    why = told(own, FAIL)
    return _verdict(why, f"{own['node']}: {why}" if why else "this node is fit")


def _of_all(attempt: AttemptFolder, why: Mapping[int, str], nodes: int) -> Verdict:
    if not why:
        return _verdict("", f"{'the node is' if nodes == 1 else f'all {nodes} nodes are'} fit; no trainer was started")
    texts = [f"{name_of(attempt, node)}: {text}" for node, text in sorted(why.items())]
    shown = "; ".join(texts[:_SHOWN]) + (f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
    return _verdict(shown, f"{len(why)} of {nodes} nodes cannot train: {shown}")


def _verdict(why: str, reason: str) -> Verdict:
    code = Code.BAD_NODE if why else Code.FINISHED
    return Verdict(int(code), outcome_of(code), f"{reason} (monitor.node_check=only)", None, None, None)


class Answers:
    """What the nodes have said so far. reports: node -> health.py's. results: node -> how its worker ended.

    start: of this start of all nodes alone; None = of any.
    """

    def __init__(self, attempt: AttemptFolder, start: Optional[str]) -> None:
        self.reports: dict[int, dict[str, Any]] = {}
        self.results: dict[int, dict[str, Any]] = {}
        self._attempt = attempt
        self._start = start

    def look(self) -> int:
        """Reads what is new; how many nodes have answered. Node 0 writes its result last."""
        for name in os.listdir(self._attempt.path) if self._attempt.path.is_dir() else ():
            match = _FILE.fullmatch(name)
            found = self.reports if match and match[1] else self.results
            if match is None or int(match[2]) in found:
                continue
            content = read_object(self._attempt.path / name)
            if content is not None and self._start in (None, content.get("start", "")):
                found[int(match[2])] = content
        return len({*self.reports, *self.results})

    def unfit(self, nodes: int) -> dict[int, str]:
        """Node -> why it shall not be used; empty when all are fit."""
        why = {}
        for node in range(nodes):
            if node in self.reports:
                why[node] = told(self.reports[node], FAIL)
            elif node in self.results:
                why[node] = str(self.results[node].get("reason") or "it gave no reason")
            else:
                why[node] = NO_ANSWER
        return {node: text for node, text in why.items() if text}


def name_of(attempt: AttemptFolder, node: int) -> str:
    """A node's name by its own word, else its place."""
    report, started = read_object(attempt.health(node)) or {}, read_object(attempt.started(node)) or {}
    return str(report.get("node") or started.get("host") or f"node {node}")


def suspects(attempt: AttemptFolder) -> tuple[int, ...]:
    """The nodes to do without, after such an attempt; none when most of them failed: then it is not the nodes' fault."""
    result = read_object(attempt.result()) or {}
    answers = Answers(attempt, str(result.get("start", "")))
    answers.look()
    nodes = 1 + max([*answers.reports, *answers.results], default=-1)
    failed = sorted(answers.unfit(nodes))
    return tuple(failed) if 2 * len(failed) <= nodes else ()


def add(report: dict[str, Any], name: str, look: Callable[[], None]) -> None:
    """Adds what else would keep this node from training: the WorkerError of `look`, if it raises one."""
    try:
        look()
    except WorkerError as error:
        report["findings"].append({"name": name, "level": FAIL, "seen": str(error)})


def unmade(node: str, why: str) -> dict[str, Any]:
    """The report of a node whose examination could not be made: it is not known to be fit."""
    finding = {"name": "check", "level": FAIL, "seen": why}
    return {"node": node, "findings": [finding], "speeds": {}, "domain": "", "driver": ""}
