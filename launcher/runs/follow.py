"""Reading a file that somebody else is still writing."""

from __future__ import annotations

from pathlib import Path

_MOST_AT_ONCE = 1 << 22  # bytes of one read; the rest comes with the next


class GrowingFile:
    """The lines of a log as they are completed. A file that does not exist yet has none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """The lines completed since the last call, without newlines; at most some MB of them."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE)
        except OSError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [_text(line) for line in whole]

    def has_more(self) -> bool:
        """Whether bytes lie there that were not read yet."""
        try:
            return self.path.stat().st_size > self._offset
        except OSError:
            return False

    def close(self) -> list[str]:
        """All that is left, the last line even without a newline."""
        found = self.lines()
        while self.has_more():
            found += self.lines()
        rest, self._rest = self._rest, b""
        return [*found, _text(rest)] if rest else found


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")
