#!/bin/sh
# Prints a Python >= 3.12 (MaxText needs it). A name on PATH may be a version manager's shim that only complains, so each is tried.
for candidate in ${PYTHON:-} python3.12 python3.13 python3.14 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python /usr/local/bin/python3.1[2-9] /opt/python*/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done
echo "no Python >= 3.12 found: install one (with its venv module), or name it: make PYTHON=/path/to/python3.12" >&2
exit 1
