# Two commands matter: `make demo` and `make test`. Each builds .venv by itself when it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

# Threads that spin while they wait make everything many times slower on a machine that is shared.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test check format docs comparison time-to-robust bench clean

demo: $(READY)
	$(BIN)/spat demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/golden tests/architecture

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python docs/generate.py

comparison: $(READY)
	$(BIN)/python benchmarks/defences.py

time-to-robust: $(READY)
	$(BIN)/python benchmarks/time_to_robust.py --seconds
	$(BIN)/python benchmarks/time_to_robust.py

bench: .bench/.ready
	.bench/bin/python benchmarks/step.py
	.bench/bin/python benchmarks/peers.py
	.bench/bin/python benchmarks/autoattack.py
	.bench/bin/python benchmarks/processes.py
	.bench/bin/python benchmarks/waterfall.py

clean:
	rm -rf .venv .bench runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

# torch first and pinned (constraints.txt): left to itself pip would choose gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# The toolkits to compare with, in an environment of their own: they ask for much else.
.bench/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .bench
	.bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision
	.bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@
