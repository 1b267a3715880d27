"""Stop signals, collected for the main loop. Signals that were ignored at the start (nohup) stay ignored."""

from __future__ import annotations

import os
import signal
from collections import deque
from types import FrameType

from .stopping import STOP_SIGNALS


class SignalBox:
    """Catches the stop signals from `install` on; `take` hands them over in order. `wakeup` is readable after one."""

    def __init__(self) -> None:
        self.wakeup, self._write_end = os.pipe()
        self._caught: deque[int] = deque()

    def install(self) -> None:
        """Takes over the stop signals. Only from the main thread."""
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self._write_end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._catch)

    def ignore(self) -> None:
        """Lets no stop signal change the exit code any more: Python's own end would give them their default, death."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        self._caught.append(number)

    @property
    def pending(self) -> bool:
        """Whether a stop signal waits to be taken."""
        return bool(self._caught)

    def take(self) -> list[int]:
        """The signals caught since the last call, oldest first."""
        try:
            while os.read(self.wakeup, 512):
                pass
        except BlockingIOError:
            pass
        taken = []
        while self._caught:
            taken.append(self._caught.popleft())
        return taken
