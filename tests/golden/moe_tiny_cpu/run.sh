#!/bin/sh
# Runs one node of this bundle: starts 2 trainer processes here and waits for them.
# Nothing need be installed but a python3 that has the trainer (PYTHON=...); the worker itself is in node/.
#
#   PYTHON   the Python that has MaxText                  default: python3
#   RUN      the run's folder: logs, result, checkpoints   default: beside the bundle
#   ATTEMPT  the number of this start, from 1              default: the next free one
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)

# Inside a run's folder (RUN/bundle/run.sh) the run is that folder.
if [ -z "${RUN:-}" ]; then
    if [ -f "$here/../run.json" ]; then RUN=$(dirname -- "$here"); else RUN=$here.run; fi
fi

# The next attempt that has no folder yet.
if [ -z "${ATTEMPT:-}" ]; then
    ATTEMPT=1
    while [ -e "$RUN/attempts/$ATTEMPT" ]; do ATTEMPT=$((ATTEMPT + 1)); done
fi

# -B: no bytecode inside the bundle, whose files are sealed by manifest.json.
exec "${PYTHON:-python3}" -B "$here/node/worker.py" --bundle "$here" --run "$RUN" --attempt "$ATTEMPT" "$@"
