#!/bin/sh
# Runs one node of this bundle: starts 4 trainer processes here and waits for them.
# Nothing need be installed but a python3 that has the trainer (PYTHON=...); the worker itself is in node/.
#
#   PYTHON   the Python that has MaxText                  default: python3
#   RUN      the run's folder: logs, result, checkpoints   default: beside the bundle
#   ATTEMPT  the number of this start, from 1              default: none, it must be said
#
# The bundle is for 256 nodes. Start this script on each of them, all within 300 s, with
#   NODE_RANK    this node's number, 0 to 255
#   COORDINATOR  the name or address of node 0, as the others reach it
# and RUN in a file system that they share:
#   NODE_RANK=0 COORDINATOR=node0 RUN=/shared/run ATTEMPT=1 sh run.sh
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)

# Inside a run's folder (RUN/bundle/run.sh) the run is that folder.
if [ -z "${RUN:-}" ]; then
    if [ -f "$here/../run.json" ]; then RUN=$(dirname -- "$here"); else RUN=$here.run; fi
fi

NODES=${NODES:-256}
: "${NODE_RANK:?the number of this node, 0 to 255}"
: "${COORDINATOR:?the name or address of node 0}"
: "${ATTEMPT:?the number of this start, the same on all nodes}"

# -B: no bytecode inside the bundle, whose files are sealed by manifest.json.
exec "${PYTHON:-python3}" -B "$here/node/worker.py" --bundle "$here" --run "$RUN" --attempt "$ATTEMPT" \
    --nodes "$NODES" --node-rank "$NODE_RANK" --coordinator "$COORDINATOR" "$@"
