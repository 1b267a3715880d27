# Each target works alone on a fresh machine: it finds a Python >= 3.12, makes .venv, installs, and runs.
VENV := .venv
PY := $(VENV)/bin/python
.PHONY: demo test test-slow lint benchmark golden clean

demo: $(VENV)/ready  ## train a small MoE on this machine, in two processes with expert parallelism 2
	$(PY) -m launcher +exp=moe_tiny_cpu

test: $(VENV)/ready  ## the tests, with real MaxText and a real SLURM where they can be had
	$(PY) -m pytest -m "not slow"

test-slow: $(VENV)/ready  ## the long ones
	$(PY) -m pytest -m slow

lint: $(VENV)/ready  ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

benchmark: $(VENV)/ready  ## how fast the command line is, and what SLURM's own commands leave to us
	$(PY) -m benchmarks.command_line
	$(PY) -m benchmarks.slurm

golden: $(VENV)/ready  ## write the golden files anew; look at the difference before you commit it
	LAUNCHER_UPDATE_GOLDEN=1 $(PY) -m pytest tests/render/test_golden.py

$(VENV)/ready: pyproject.toml
	PYTHON="$(PYTHON)" tools/find_python.sh > /dev/null
	"$$(PYTHON='$(PYTHON)' tools/find_python.sh)" -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -e '.[local,slurm,dev]'
	touch $@

clean:  ## what the targets above made; runs stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
