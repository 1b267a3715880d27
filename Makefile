# Each target works alone on a fresh machine: it finds a Python >= 3.12, makes .venv, installs, and runs.
VENV := .venv
PY := $(VENV)/bin/python
.PHONY: demo test test-slow lint benchmark golden clean

demo: $(VENV)/ready  ## train a small MoE on this machine, in two processes with expert parallelism 2
	$(PY) -m launcher +exp=moe_tiny_cpu
	$(PY) -m launcher report moe_tiny_cpu --html report.html && echo "the report's page: $$PWD/report.html"

test: $(VENV)/ready  ## the tests, with real MaxText, SLURM and a Kubernetes API server where they can be had
	$(PY) -m pytest -m "not slow"

test-slow: $(VENV)/ready  ## the long ones
	$(PY) -m pytest -m slow

lint: $(VENV)/ready  ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

benchmark: $(VENV)/ready  ## how fast the command line and the log reader are, what SLURM's own commands leave to us, how good predictions are
	$(PY) -m benchmarks.command_line
	$(PY) -m benchmarks.slurm
	$(PY) -m benchmarks.prediction
	$(PY) -m benchmarks.reading

golden: $(VENV)/ready  ## write the golden files anew; look at the difference before you commit it
	LAUNCHER_UPDATE_GOLDEN=1 $(PY) -m pytest tests/render/test_golden.py tests/k8s/test_base.py -k 'golden or example'

$(VENV)/ready: pyproject.toml
	PYTHON="$(PYTHON)" tools/find_python.sh > /dev/null
	"$$(PYTHON='$(PYTHON)' tools/find_python.sh)" -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -e '.[local,slurm,kubernetes,aot,report,dev]'
	touch $@

clean:  ## what the targets above made; runs stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
