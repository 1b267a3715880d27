"""What a cluster says without anything being started: a submission rehearsed, a run or an experiment compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.issue import Issue, Refused, Severity

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.render.bundle import Bundle


def dry_run(made: Plan) -> int:
    """Everything that would stop it, the server's own words included; starts and writes nothing."""
    import os

    from launcher.targets import base

    target = base.get(made.experiment.target.kind)
    options = target.options(os.environ)
    issues = target.refusals(made, options)
    if issues:
        raise Refused(*issues)
    lines = target.rehearse(made, options)
    print("\n".join([*lines, "nothing was submitted: leave out --dry-run"]))
    return 0


def compare(side: Bundle | Path, name: str, as_json: bool) -> int:
    """Field by field what applying it now would change in the cluster; exit code 0 = nothing, 1 = something."""
    from launcher.targets import kubernetes_diff
    from launcher.targets.kubernetes_client import Declined

    try:
        found = _found(side, name)
    except Declined as declined:
        raise Refused(Issue("KUBE_REFUSED", Severity.ERROR, "target", str(declined), "")) from declined
    if as_json:
        print(json.dumps(found, indent=2))
    elif found:
        print(kubernetes_diff.text(found))
    else:
        print(f"{name}: the cluster has exactly this")
    return 1 if found else 0


def _found(side: Bundle | Path, name: str) -> list[dict[str, str]]:
    from launcher.node.layout import RunFolder
    from launcher.render.folder import Bundle
    from launcher.runs import store
    from launcher.runs.attempts import handle_of, newest
    from launcher.targets import kubernetes_diff
    from launcher.targets.kubernetes_manifest import ARTEFACT

    if isinstance(side, Bundle):
        if ARTEFACT not in side.files:
            raise _no_cluster(name)
        return kubernetes_diff.of_texts(side.artefact, side.files["experiment.yaml"].decode())
    if RunFolder(side).run.exists():
        run = store.load(side)
        attempt = newest(run)
        handle = handle_of(run, attempt) if attempt is not None else None
        if run.target != "kubernetes":
            raise _no_cluster(name)
        if handle is not None:
            return kubernetes_diff.of_run(run.layout.bundle.path, handle)
        side = run.layout.bundle.path
    if not (side / ARTEFACT).exists():
        raise _no_cluster(name)
    return kubernetes_diff.of_texts((side / ARTEFACT).read_text("utf-8"), (side / "experiment.yaml").read_text("utf-8"))


def _no_cluster(name: str) -> Refused:
    message = f"{name} is not for Kubernetes: a cluster's objects are what --cluster compares with"
    return Refused(Issue("DIFF", Severity.ERROR, "target", message, "leave out --cluster, or add target=kubernetes"))
