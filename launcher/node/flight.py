"""Evidence of a stall: gathered by evidence.py in a process of its own, and read back: which nodes stand out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from .ending import read_object
from .layout import AttemptFolder
from .place import host_name
from .tether import tether

PROGRAM = Path(__file__).with_name("evidence.py")
SECONDS = 50.0  # for all probes
MOST_SECONDS = 60.0  # until evidence.py is killed
REQUEST = "request.json"

_RAS = "localhost:28028"  # NCCL's default; NCCL_RAS_ADDR names another one
_PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")  # of the environment: the trainers' holds secrets
_PLACES = 3  # more of them explain nothing in one line
_STATES = {"T": "state T (stopped)", "D": "state D (in the kernel)", "Z": "state Z (dead)", "gone": "no process"}
_BUSY = 50.0  # percent: a GPU that waits in a collective spins at 100, one that was given nothing to do is at 0


class Asked(NamedTuple):
    """What is to be looked at. pids, last: by rank. since: the attempt's start, Unix seconds. python: the trainers'."""

    attempt: AttemptFolder
    node: int
    pids: Mapping[int, int]
    last: Mapping[int, Optional[int]]
    since: float
    python: str
    environ: Mapping[str, str]


class Flight:
    """One gathering that goes on in the background. Raises OSError where it cannot begin."""

    def __init__(self, asked: Asked, why: str, now: float) -> None:
        """`now`: seconds of the monotonic clock."""
        self._began = now
        folder = asked.attempt.flight(asked.node)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / REQUEST
        path.write_text(json.dumps(_request(asked, folder, why), indent=1) + "\n", encoding="utf-8")
        with open(folder / "errors", "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(PROGRAM), str(path)],
                env={name: asked.environ[name] for name in _PASSED if name in asked.environ},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # so that what it has started ends with it
                preexec_fn=tether(),  # noqa: PLW1509  there are no threads
            )

    def is_done(self, now: float) -> bool:
        """Whether nothing more will come; what takes too long is ended."""
        if self._process.poll() is None and now - self._began <= MOST_SECONDS:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Ends it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver that it asked
            self._process.wait(1.0)


def _request(asked: Asked, folder: Path, why: str) -> dict[str, Any]:
    # NCCL answers for the whole job: one node asks, or 256 would at once.
    ras = asked.environ.get("NCCL_RAS_ADDR", _RAS) if asked.node == 0 else ""
    return {
        "folder": str(folder),
        "summary": str(asked.attempt.flight_summary(asked.node)),
        "node": asked.node,
        "host": host_name(),
        "at": time.time(),
        "why": why,
        "since": asked.since,
        "seconds": SECONDS,
        "python": asked.python,
        "ras": ras,
        "ranks": [
            {"rank": rank, "pid": pid, "last_step": asked.last.get(rank), "log": str(asked.attempt.rank_log(rank))}
            for rank, pid in sorted(asked.pids.items())
        ],
    }


Summary = Mapping[str, Any]
_Sign = Callable[[Summary], Optional[str]]
"""What is odd about a node: "" = nothing, None = it cannot be seen."""


class Standing(NamedTuple):
    """What stands out. nodes: their indexes, () = none, or too many to blame a node. text: one line, "" = nothing does."""

    nodes: tuple[int, ...]
    text: str


def read(attempt: AttemptFolder) -> list[Summary]:
    """The summaries of all nodes that made one, by node."""
    found = []
    for path in attempt.path.glob("flight-node*.json"):
        data = read_object(path)
        if data is not None and isinstance(data.get("node"), int) and isinstance(data.get("ranks"), list):
            found.append(data)
    return sorted(found, key=lambda summary: int(summary["node"]))


def suspects(attempt: AttemptFolder) -> tuple[int, ...]:
    """The nodes that stand out in what was gathered, when they are a minority; () otherwise."""
    return standing(read(attempt)).nodes


def told(attempt: AttemptFolder) -> str:
    """What stands out, in one line; "" when nothing does or nothing was gathered."""
    return standing(read(attempt)).text


def standing(summaries: Sequence[Summary]) -> Standing:
    """What stands out, the strongest sign first: a fault of a GPU, a step behind, an idle GPU, a wait in the kernel, a stack.

    The stack comes last: of ranks that wait for one another, some wait in another place by chance.
    """
    within = _standing_ranks(summaries)
    hosts = {int(each["node"]): each.get("host", "") for each in summaries}
    for sign in (_xid, _behind(summaries), _idle, _in_kernel, _elsewhere(summaries)):
        seen = {int(each["node"]): sign(each) for each in summaries}
        odd = [node for node, what in seen.items() if what]
        if odd and 2 * len(odd) < sum(what is not None for what in seen.values()):
            names = ", ".join(f"{node} ({hosts[node]})" for node in odd[:4])
            return Standing(tuple(odd), f"node {names} stands out: {seen[odd[0]]}{within}")
    return Standing((), within.lstrip("; "))


def _standing_ranks(summaries: Sequence[Summary]) -> str:
    """Where the ranks' main threads stand, the fewest first; nothing when they stand in more than three places."""
    groups: dict[str, list[int]] = {}
    for rank in (rank for summary in summaries for rank in summary["ranks"]):
        if _place(rank):
            groups.setdefault(_place(rank), []).append(int(rank["rank"]))
    if not 0 < len(groups) <= _PLACES:
        return ""
    *few, (usual, most) = sorted(groups.items(), key=lambda item: len(item[1]))
    if not few:
        return f"; all {len(most)} rank(s) are in {usual}"
    odd = [f"rank {', '.join(map(str, sorted(ranks)[:4]))} in {place}" for place, ranks in few]
    others = f"rank {', '.join(map(str, sorted(most)))}" if len(most) < _PLACES else f"the other {len(most)}"
    return f"; {', '.join(odd)}, {others} in {usual}"


def _place(rank: Mapping[str, Any]) -> str:
    """The frame without its line: two ranks in one loop stand on lines of their own. Without a frame, what forbids one."""
    return re.sub(r":\d+\)$", ")", str(rank.get("top") or "")) or _STATES.get(str(rank.get("state")), "")


def _xid(summary: Summary) -> Optional[str]:
    xids = summary.get("xids") or []
    return f"its GPU driver says {xids[-1]}" if xids else ""


def _behind(summaries: Sequence[Summary]) -> _Sign:
    lasts = Counter(step for step in map(_last_step, summaries) if step is not None)
    usual = lasts.most_common(1)[0][0] if lasts else 0

    def sign(summary: Summary) -> Optional[str]:
        last = _last_step(summary)
        return None if last is None else f"its last step is {last}, the others' {usual}" if last < usual else ""

    return sign


def _last_step(summary: Summary) -> Optional[int]:
    return min((rank["last_step"] for rank in summary["ranks"] if isinstance(rank.get("last_step"), int)), default=None)


def _idle(summary: Summary) -> Optional[str]:
    busy = [gpu["busy"] for gpu in summary.get("gpus") or () if isinstance(gpu.get("busy"), (int, float))]
    return None if not busy else f"a GPU of it is at {min(busy):.0f} %, the others work" if min(busy) < _BUSY else ""


def _in_kernel(summary: Summary) -> Optional[str]:
    stuck = [rank for rank in summary["ranks"] if rank.get("state") == "D"]
    return f"rank {stuck[0]['rank']} waits in the kernel ({stuck[0].get('wchan') or 'unknown'})" if stuck else ""


def _elsewhere(summaries: Sequence[Summary]) -> _Sign:
    places = Counter(place for place in map(_places, summaries) if place)
    usual = places.most_common(1)[0][0] if places else ""

    def sign(summary: Summary) -> Optional[str]:
        own = _places(summary)
        return None if not own else "" if own == usual else f"it is in {own}, the others in {usual}"

    return sign


def _places(summary: Summary) -> str:
    return ", ".join(sorted({_place(rank) for rank in summary["ranks"]} - {""}))
