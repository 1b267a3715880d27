"""What a search found, as a table with ready override lines and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launcher.plan.search import Choice, Found
from launcher.render.layout import count

GIB = 1 << 30


def _row(choice: Choice) -> list[str]:
    mesh = choice.mesh
    sizes = "x".join(str(mesh.size(axis)) for axis in ("data", "fsdp", "expert"))
    host = f"{choice.memory.host / GIB:,.1f}" if choice.memory.host else "-"
    return [
        f"{choice.rate:,.0f}", f"{choice.expected:.3g}", f"{choice.memory.total / GIB:,.1f}", f"{choice.headroom / GIB:,.1f}",
        host, sizes, f"{choice.batch:g}", " ".join(choice.words) or "(as asked)",
    ]  # fmt: skip


HEADS = ["tokens/s/GPU", "step s", "GiB", "free", "host", "dp x fsdp x ep", "batch", "type"]


def _table(choices: Sequence[Choice]) -> list[str]:
    rows = [HEADS, *map(_row, choices)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS) - 1)]
    return [
        "  " + "  ".join([*(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def _key(word: str) -> str:
    """What an override sets.

    >>> _key("+maxtext.steps=3")
    'maxtext.steps'
    """
    return word.lstrip("+").partition("=")[0]


def search_text(found: Found, words: Sequence[str]) -> str:
    """The table, the reasons, and the line to type."""
    lines = [f"{count(found.looked_at, 'choice')} for {found.gpus:,} GPUs"]
    if found.rejected:
        lines.append("Rejected:")
        lines += [
            f"  {number:>9,}  {reason}"
            for reason, number in sorted(found.rejected.items(), key=lambda r: (-r[1], r[0]))
        ]
    if not found.ties:
        lines.append("Nothing fits: more GPUs (nodes, mesh.dcn), or another model or precision.")
        return "\n".join(lines) + "\n"
    lines.append("Ties: the prediction cannot tell these from the fastest; the fewest changes first")
    lines += _table(found.ties)
    if found.slower:
        lines += ["Slower, by more than the prediction's noise:", *_table(found.slower[:3])]
    chosen = found.ties[0].words
    changed = {_key(word) for word in chosen}
    asked = shlex.join(word for word in words if _key(word) not in changed)
    lines.append(f"Type: python -m launcher plan {asked} {' '.join(chosen)}".rstrip())
    return "\n".join(lines) + "\n"


def _choice_json(choice: Choice) -> dict[str, object]:
    memory = choice.memory
    return {
        "words": list(choice.words),
        "tokens_per_s_per_gpu": float(f"{choice.rate:.4g}"),
        "expected_s": float(f"{choice.expected:.4g}"),
        "per_device_batch_size": choice.batch,
        "ici": dict(choice.mesh.ici),
        "dcn": dict(choice.mesh.dcn),
        "total_bytes": memory.total,
        "headroom_bytes": choice.headroom,
        "host_bytes": memory.host,
    }


def search_json(found: Found) -> dict[str, object]:
    """The same for a script."""
    return {
        "gpus": found.gpus,
        "choices": found.looked_at,
        "rejected": dict(sorted(found.rejected.items())),
        "ties": [_choice_json(choice) for choice in found.ties],
        "slower": [_choice_json(choice) for choice in found.slower],
    }
