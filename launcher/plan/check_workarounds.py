"""trainer.workarounds: which of them concern an experiment, and names or permissions that do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.issue import Issue
from launcher.node.trainer import BAD_JAXLIB, TE_COMPILE_CACHE, TE_DATA_AXIS, TE_SCAN_CONSTANTS, WORKAROUNDS
from launcher.plan.case import Case, Rule, error, shown, warning
from launcher.suggest import suggest

FIELD = "trainer.workarounds"


def concerned(case: Case) -> dict[str, bool]:
    """The workarounds that this experiment may need -> whether it allows them. The trainer's versions decide if it does."""
    allowed = case.experiment.trainer.workarounds
    found = {TE_SCAN_CONSTANTS: TE_SCAN_CONSTANTS in allowed} if _scans_te(case) else {}
    if TE_COMPILE_CACHE in allowed and _calls_te(case):
        found[TE_COMPILE_CACHE] = True
    if has_copies(case):
        found[TE_DATA_AXIS] = TE_DATA_AXIS in allowed
    return found


def has_copies(case: Case) -> bool:
    """TE's MoE block on a mesh with a data axis."""
    return case.te and not case.cpu and case.size("data") > 1


def _scans_te(case: Case) -> bool:
    return case.te and case.values.flag("scan_layers") and not case.cpu


def _calls_te(case: Case) -> bool:
    """Something of Transformer Engine's is in the step."""
    names = (case.values.text("attention"), case.values.text("quantization"))
    return not case.cpu and (case.te or names[0] == "cudnn_flash_te" or names[1].startswith("te_"))


def _without(case: Case, name: str) -> str:
    return f"type {FIELD}=[{','.join(each for each in case.experiment.trainer.workarounds if each != name)}]"


def names(case: Case) -> Iterator[Issue]:
    """A workaround that does not exist."""
    for name in case.experiment.trainer.workarounds:
        if name not in WORKAROUNDS:
            likely = next(iter(suggest(name, WORKAROUNDS, 1)), "")
            message = f"{FIELD} names {shown(name)}: there is {', '.join(WORKAROUNDS)}"
            hint = f"type {FIELD}=[{likely}]" if likely else _without(case, name)
            yield error("WORKAROUND_NAME", FIELD, message, hint)


def unused(case: Case) -> Iterator[Issue]:
    """A permission for what this experiment never does."""
    allowed = case.experiment.trainer.workarounds
    if TE_SCAN_CONSTANTS in allowed and not _scans_te(case):
        message = (
            f"{TE_SCAN_CONSTANTS} is about te_moe_block=true with scan_layers=true on GPUs (jaxlib {BAD_JAXLIB} crashes on it), "
            f"seen te_moe_block={shown(case.te)} and scan_layers={shown(case.values.flag('scan_layers'))}: it does nothing here"
        )
        yield warning("WORKAROUND_UNUSED", FIELD, message, _without(case, TE_SCAN_CONSTANTS))
    if TE_COMPILE_CACHE in allowed and not _calls_te(case):
        message = (
            f"{TE_COMPILE_CACHE} is about steps with Transformer Engine on GPUs, which JAX's compile cache does not know again; "
            "seen neither its MoE block, nor its attention, nor a quantization of its: it does nothing here"
        )
        yield warning("WORKAROUND_UNUSED", FIELD, message, _without(case, TE_COMPILE_CACHE))
    if TE_DATA_AXIS in allowed and not has_copies(case):
        message = (
            f"{TE_DATA_AXIS} is about te_moe_block=true on a mesh with data above 1, seen te_moe_block={shown(case.te)} and data "
            f"{case.size('data')}: it does nothing here"
        )
        yield warning("WORKAROUND_UNUSED", FIELD, message, _without(case, TE_DATA_AXIS))


RULES: tuple[Rule, ...] = (names, unused)
