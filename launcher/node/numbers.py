"""Node 0 reads what the trainer says of each step while it trains, tells of what is wrong, and asks for the end where that is
the policy: then an earlier checkpoint is clean, and rollback.py goes back to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Optional

from . import alarms, marks
from .alarms import Alarm, Alarms
from .codes import Code
from .monitor import Stop
from .policy import WARN, Policy
from .rows import LiveRows
from .table import Row

_PAUSES = (marks.SAVING, marks.SAVED, marks.EVALUATED)
_WANTED = re.compile(marks.PREFILTER.pattern.decode())


def word_of(policy: Policy, kind: str) -> str:
    """What the policy says of one kind of alarm; those that nothing follows from are told.

    >>> word_of(Policy(nan="rollback"), "nan"), word_of(Policy(), "slow_step")
    ('rollback', 'warn')
    """
    words = {
        alarms.NAN: policy.nan,
        alarms.SPIKE: policy.loss_spike,
        alarms.GRADIENT: policy.grad_spike,
        alarms.IMBALANCE: policy.imbalance,
    }
    return words.get(kind, WARN)


class Numbers:
    """A Watcher (monitor.py). `found`: the first alarm that asks for the end of the attempt, None while there is none."""

    def __init__(
        self,
        rows: LiveRows,
        policy: Policy,
        say: Callable[[str], None],
        *,
        on_row: Callable[[Row], None],
        on_alarm: Callable[[Alarm, str], None],
        before: Sequence[Row] = (),
    ) -> None:
        """say: writes one line. on_row: each step, once. on_alarm: each alarm with the policy's word for it.

        before: steps of earlier attempts (rows.earlier); those below the first of this one are what it is judged by.
        """
        self.found: Optional[Alarm] = None
        self._rows = rows
        self._policy = policy
        self._say = say
        self._on_row = on_row
        self._on_alarm = on_alarm
        self._alarms = Alarms()
        self._before = before
        self._is_paused = False  # a checkpoint or an evaluation came since the last step
        self._excused: set[int] = set()
        self._last = -1
        self._aborted: Optional[str] = None
        self._nan_was_told = False

    def line(self, rank: int, text: str, now: float) -> None:  # noqa: ARG002  the Watcher's
        """One line of a rank; only those of rank 0 count, which prints what all compute."""
        if rank:
            return
        step = self._rows.line(text)
        if step is not None:
            self._last = step
            if self._is_paused:
                self._excused.add(step)
                self._is_paused = False
        elif _WANTED.search(text):
            mark = marks.parse_mark(text, None)
            if mark is not None:
                self._is_paused |= mark.kind in _PAUSES
                self._aborted = mark.text if mark.kind == marks.ABORTED else self._aborted

    def look(self, now: float) -> Optional[Stop]:
        """The end, when an alarm asks for it; from then on at each look."""
        self._take(self._rows.look(now))
        if self.found is None:
            return None
        return Stop(int(Code.DIVERGED), self.found.text)

    def close(self) -> None:
        """The steps that were not looked at yet, and MaxText's own end over a loss that is no number."""
        self._take(self._rows.close())
        if self._aborted is not None and not self._nan_was_told:
            # Its line of that step was cut or has another form.
            text = f"the loss is {self._aborted} after step {self._last}, MaxText says"
            self._tell(Alarm(alarms.NAN, self._last + 1, None, text, max(self._last, 0)))

    def _take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for past in self._before:
                if past.step < row.step:
                    self._alarms.feed(past)
            self._before = ()
            excused = row.step in self._excused
            self._excused.discard(row.step)
            self._on_row(row)
            for alarm in self._alarms.feed(row, excused):
                self._tell(alarm)

    def _tell(self, alarm: Alarm) -> None:
        word = word_of(self._policy, alarm.kind)
        self._nan_was_told |= alarm.kind == alarms.NAN
        self._say(f"{alarm.kind}: {alarm.text}")
        self._on_alarm(alarm, word)
        if word != WARN and self.found is None:
            self.found = alarm
