"""Preflight checks, printed."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from launcher.issue import Refused
from launcher.plan.plan import Plan
from launcher.preflight import maxtext as maxtext_check
from launcher.render.bundle import render, write


def maxtext(plan: Plan, python: str | None, as_json: bool) -> int:
    """Render the plan into a throw-away folder and let MaxText read it; exit code 1 when it refuses."""
    with tempfile.TemporaryDirectory(prefix="launcher-preflight-") as name:
        folder = Path(name) / "bundle"
        write(render(plan), folder)
        verdict = maxtext_check.check(folder, python or sys.executable)
    if as_json:
        print(json.dumps(dataclasses.asdict(verdict), indent=2))
        return 0 if verdict.accepted else 1
    if verdict.issue is not None:
        raise Refused(verdict.issue)
    if verdict.resolved is not None:
        seen = verdict.resolved
        axes = "  ".join(
            f"{part} " + " x ".join(f"{axis} {n}" for axis, n in sizes.items())
            for part, sizes in (("ici", seen.ici), ("dcn", seen.dcn))
            if sizes
        )
        print(
            f"MaxText {verdict.version} accepts it: {seen.devices} devices in {seen.domains} domain(s), "
            f"{axes or 'one device'}, {seen.global_batch} sequences a step"
        )
        for what, names in (("on device", seen.tensors_on_device), ("to the host", seen.tensors_to_offload)):
            if names:
                print(f"  kept {what}: {', '.join(names)}")
    return 0
