"""What kind of work the kernels of a profile are, by a table (launcher/data/kernels.toml) that users may extend."""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.tables import users_rows
from launcher.issue import Issue, Severity

TABLE = Path(__file__).resolve().parent.parent / "data" / "kernels.toml"
OWN = "kernels.toml"
"""The name of a user's own table in a folder of $LAUNCHER_CONF."""


class Kind(enum.Enum):
    """Kinds of work. Where several run at the same time, the time is given to the first of them here."""

    GROUPED_GEMM = "grouped_gemm"
    GEMM = "gemm"
    ATTENTION = "attention"
    QUANTIZE = "quantize"
    PERMUTE = "permute"
    OTHER = "other"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    SEND_RECV = "send_recv"
    OTHER_COLLECTIVE = "other_collective"
    COPY_TO_HOST = "copy_to_host"
    COPY_TO_DEVICE = "copy_to_device"
    COPY = "copy"
    IDLE = "idle"


COMPUTE = tuple(Kind)[: tuple(Kind).index(Kind.DISPATCH)]
COMMUNICATION = tuple(Kind)[len(COMPUTE) : tuple(Kind).index(Kind.COPY_TO_HOST)]
COPIES = (Kind.COPY_TO_HOST, Kind.COPY_TO_DEVICE, Kind.COPY)

SHOWN = {
    Kind.GROUPED_GEMM: "grouped GEMM",
    Kind.GEMM: "GEMM",
    Kind.PERMUTE: "token permutation",
    Kind.OTHER: "other kernels",
    Kind.ALL_TO_ALL: "all-to-all",
    Kind.ALL_GATHER: "all-gather",
    Kind.REDUCE_SCATTER: "reduce-scatter",
    Kind.ALL_REDUCE: "all-reduce",
    Kind.SEND_RECV: "send/recv",
    Kind.OTHER_COLLECTIVE: "other collective",
    Kind.COPY_TO_HOST: "copy to host",
    Kind.COPY_TO_DEVICE: "copy to device",
    Kind.COPY: "copy, fill",
}
"""How a kind is printed, where that is not its word."""

_FABRICS = (
    ("NVLS", "NVLink"),
    ("COLLNET|CollNet", "network"),
    ("^MemcpyP2P|MultiGpuBarrier|RaggedAllToAllKernel|gpu::AllReduceKernel", "peer memory (NVLink or PCIe)"),
)
"""What a name tells of the way: NVLink SHARP is NVLink, CollNet the network's switches; the last write into a neighbour."""


def shown(kind: Kind) -> str:
    """As a person writes it."""
    return SHOWN.get(kind, kind.value)


@dataclass(frozen=True)
class Row:
    """One row of the table. kernel, op: patterns, each list fits when one of its patterns does; an empty one always."""

    kind: Kind
    kernel: tuple[re.Pattern[str], ...] = ()
    op: tuple[re.Pattern[str], ...] = ()
    example: tuple[str, str] = ("", "")
    source: str = ""

    def fits(self, name: str, op: str) -> bool:
        """name: the kernel's. op: XLA's operation and its scopes."""
        kernels = not self.kernel or any(pattern.search(name) for pattern in self.kernel)
        return kernels and (not self.op or any(pattern.search(op) for pattern in self.op))


def kind_of(rows: Sequence[Row], name: str, op: str) -> Kind:
    """The kind by the first row that fits; OTHER by none."""
    return next((row.kind for row in rows if row.fits(name, op)), Kind.OTHER)


def fabric_of(name: str, single: bool) -> str:
    """The way a communication goes, as far as a kernel's name tells it. single: the run has one NVLink domain."""
    for pattern, fabric in _FABRICS:
        if re.search(pattern, name):
            return fabric
    return "within one NVLink domain" if single else "unknown"


def table() -> tuple[Row, ...]:
    """All rows, the user's first. Raises Refused: a table of the user's is wrong; all that is, at once."""
    return (*users_rows(OWN, read_table), *own_table())


def own_table() -> tuple[Row, ...]:
    """The rows that come with the launcher."""
    rows, issues = read_table(TABLE.read_text(encoding="utf-8"), str(TABLE))
    assert not issues, issues
    return rows


def read_table(text: str, name: str) -> tuple[tuple[Row, ...], list[Issue]]:
    """The rows of a table, and what is wrong with it. `name`: of its file, for the messages."""
    try:
        given = tomllib.loads(text).get("kernel", [])
    except tomllib.TOMLDecodeError as error:
        return (), [_issue(name, f"is no TOML: {error}", "see launcher/data/kernels.toml for its form")]
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        return (), [_issue(name, "`kernel` must be a list of tables", "write each row below a line [[kernel]]")]
    rows, issues = [], []
    for number, row in enumerate(given, 1):
        try:
            rows.append(_row(row))
        except ValueError as error:
            issues.append(_issue(name, f"row {number}: {error}", "see launcher/data/kernels.toml for its form"))
    return tuple(rows), issues


def _row(row: dict[str, Any]) -> Row:
    """Raises ValueError: what is wrong."""
    unknown = sorted(set(row) - {"kind", "kernel", "op", "example", "source"})
    if unknown:
        raise ValueError(f"has {', '.join(unknown)}; there are: kind, kernel, op, example, source")
    kinds = [kind.value for kind in Kind if kind is not Kind.IDLE]
    if row.get("kind") not in kinds:
        raise ValueError(f"kind {row.get('kind')!r} is not known; there are: {', '.join(kinds)}")
    if not row.get("kernel") and not row.get("op"):
        raise ValueError("needs `kernel` or `op`, a list of patterns")
    name, _, op = "\0".join([*row.get("example", ("", "")), ""]).partition("\0")
    return Row(
        Kind(row["kind"]), _patterns(row, "kernel"), _patterns(row, "op"), (name, op.strip("\0")), row.get("source", "")
    )


def _patterns(row: dict[str, Any], word: str) -> tuple[re.Pattern[str], ...]:
    given = row.get(word, [])
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"`{word}` must be a list of words, such as {word} = ['^nvjet']")
    try:
        found = tuple(re.compile(one) for one in given)
    except re.error as error:
        raise ValueError(f"`{word}` holds no regular expression: {error}") from error
    if any(pattern.search("") for pattern in found):
        raise ValueError(f"a pattern of `{word}` fits every name")
    return found


def _issue(name: str, message: str, hint: str) -> Issue:
    return Issue("KERNEL_TABLE", Severity.ERROR, "", f"{name}: {message}", hint)
