"""run.sh: what a person would type to run one node of this bundle by hand. The local target's artefact."""

from __future__ import annotations

HEAD = """\
#!/bin/sh
# Runs one node of this bundle: starts {processes_per_node} trainer process{plural} here and waits for {them}.
# Nothing need be installed but a python3 that has the trainer (PYTHON=...); the worker itself is in node/.
#
#   PYTHON   the Python that has MaxText                  default: python3
#   RUN      the run's folder: logs, result, checkpoints   default: beside the bundle
#   ATTEMPT  the number of this start, from 1              default: {attempt_default}
"""

HEAD_NODES = """\
#
# The bundle is for {nodes} nodes. Start this script on each of them, all within {timeout} s, with
#   NODE_RANK    this node's number, 0 to {last}
#   COORDINATOR  the name or address of node 0, as the others reach it
# and RUN in a file system that they share:
#   NODE_RANK=0 COORDINATOR=node0 RUN=/shared/run ATTEMPT=1 sh run.sh
"""

BODY = """\
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)

# Inside a run's folder (RUN/bundle/run.sh) the run is that folder.
if [ -z "${RUN:-}" ]; then
    if [ -f "$here/../run.json" ]; then RUN=$(dirname -- "$here"); else RUN=$here.run; fi
fi
"""

ONE_NODE = """\

# The next attempt that has no folder yet.
if [ -z "${ATTEMPT:-}" ]; then
    ATTEMPT=1
    while [ -e "$RUN/attempts/$ATTEMPT" ]; do ATTEMPT=$((ATTEMPT + 1)); done
fi

# -B: no bytecode inside the bundle, whose files are sealed by manifest.json.
exec "${PYTHON:-python3}" -B "$here/node/worker.py" --bundle "$here" --run "$RUN" --attempt "$ATTEMPT" "$@"
"""

MANY_NODES = """\

NODES=${{NODES:-{nodes}}}
: "${{NODE_RANK:?the number of this node, 0 to {last}}}"
: "${{COORDINATOR:?the name or address of node 0}}"
: "${{ATTEMPT:?the number of this start, the same on all nodes}}"

# -B: no bytecode inside the bundle, whose files are sealed by manifest.json.
exec "${{PYTHON:-python3}}" -B "$here/node/worker.py" --bundle "$here" --run "$RUN" --attempt "$ATTEMPT" \\
    --nodes "$NODES" --node-rank "$NODE_RANK" --coordinator "$COORDINATOR" "$@"
"""


def script(nodes: int, processes_per_node: int, coordinator_timeout_seconds: int) -> str:
    """run.sh, POSIX sh without an absolute path; further words go to the worker (--quiet, --port).

    Args:
        nodes, processes_per_node: of the plan.
        coordinator_timeout_seconds: how long a node waits for node 0, for the reader.
    """
    many = nodes > 1
    head = HEAD.format(
        processes_per_node=processes_per_node,
        plural="es" if processes_per_node > 1 else "",
        them="them" if processes_per_node > 1 else "it",
        attempt_default="none, it must be said" if many else "the next free one",
    )
    if not many:
        return head + BODY + ONE_NODE
    facts = {"nodes": nodes, "last": nodes - 1, "timeout": coordinator_timeout_seconds}
    return head + HEAD_NODES.format(**facts) + BODY + MANY_NODES.format(**facts)
