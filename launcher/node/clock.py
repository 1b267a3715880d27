"""The times in a rank's log as Unix seconds: absl's and glog's prefixes name neither the year nor the time zone."""

from __future__ import annotations

import calendar
import time

_QUARTER = 900  # seconds; no time zone differs from UTC by anything finer
_EARLY = 60.0  # seconds by which a log's clock may be behind the one that wrote the attempt's start
_FARTHEST = 14 * 3600  # seconds; no zone is farther from UTC


class Clock:
    """Reads `I1129 17:35:53.415048 ...` (month, day, local time) for the log of one process.

    The first stamp is taken to come within a quarter of an hour after `anchor`, the attempt's start in Unix seconds: that
    gives the zone; the year is the one that lies nearest. `zone`: seconds east of UTC, None before the first stamp.
    """

    def __init__(self, anchor: float, zone: int | None = None) -> None:
        self.zone = zone
        self._anchor = anchor
        self._minutes: dict[str, float | None] = {}

    def at(self, line: str) -> float | None:
        """The time of a line that begins with a stamp, else None.

        >>> Clock(1795973750.0, 0).at("I1129 17:35:53.415048 140675135284544 train.py:1439] text")
        1795973753.415048
        """
        minute = line[1:11]
        try:
            base = self._minutes[minute]
        except KeyError:
            base = self.minute(line)
        if base is None or line[:1] not in "IWEF":
            return None
        try:
            return base + float(line[12:21])
        except ValueError:
            return None

    def minute(self, line: str) -> float | None:
        """The Unix time at which the minute of a line's stamp began; remembered, as a thousand lines share one."""
        minute = line[1:11]
        stamp = _Stamp.of(minute) if line[:1] in "IWEF" and line[11:12] == ":" else None
        if stamp is None:
            return None
        if self.zone is None:
            ahead = stamp.nearest(self._anchor) - self._anchor + _EARLY
            zone = int(ahead // _QUARTER) * _QUARTER
            self.zone = zone if abs(zone) <= _FARTHEST else 0
        if len(self._minutes) > 4096:  # four days of a log, or nonsense that looks like stamps
            self._minutes.clear()
        found = self._minutes[minute] = stamp.nearest(self._anchor + self.zone) - self.zone
        return found


class _Stamp:
    """Month, day, hour and minute."""

    def __init__(self, month: int, day: int, hour: int, minute: int) -> None:
        self._parts = (month, day, hour, minute)

    @classmethod
    def of(cls, text: str) -> _Stamp | None:
        """From "1129 17:35"."""
        digits = text[0:4] + text[5:7] + text[8:10]
        if len(text) != 10 or text[4] != " " or text[7] != ":" or not (digits.isascii() and digits.isdigit()):
            return None
        month, day, hour, minute = (int(digits[i : i + 2]) for i in (0, 2, 4, 6))
        sound = 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60
        return cls(month, day, hour, minute) if sound else None

    def nearest(self, when: float) -> float:
        """The second at which it began, as if in UTC, in the year that brings it nearest to `when`."""
        year = time.gmtime(when).tm_year
        month, day, hour, minute = self._parts
        candidates = (calendar.timegm((y, month, day, hour, minute, 0)) for y in (year - 1, year, year + 1))
        return float(min(candidates, key=lambda candidate: abs(candidate - when)))
