# Every target creates what it needs: `make demo` or `make test` is all that a fresh clone wants.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-versions lint bench-hypergradient bench-pieces clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plot,test]'
	@touch $@

demo: .venv/installed  ## find planted label errors in handwritten digits
	$(BIN)/python examples/demo_digits.py

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache

# Two workers of one thread each: threads of two workers would fight over the cores.
test: lint  ## ruff, import layers, tests and doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# The oldest scikit-learn that is supported, the last without callbacks in between, and whatever is newest.
SKLEARN_VERSIONS := 1.6.1 1.7.2 newest
SKLEARN_TESTS := tests/test_common.py tests/test_routing.py tests/test_filtered.py tests/test_metrics.py tests/test_cache.py

test-versions: $(SKLEARN_VERSIONS:%=test-sklearn-%)  ## the tests that depend on scikit-learn, on three versions of it

.venvs/sklearn-%/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -v '^scikit-learn==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt --editable '.[test]' \
		'scikit-learn$(if $(filter newest,$*),,==$*)'
	@touch $@

test-sklearn-%: .venvs/sklearn-%/installed
	$(<D)/bin/python -c 'import sklearn; print("scikit-learn", sklearn.__version__)'
	OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest --numprocesses 2 --dist worksteal $(SKLEARN_TESTS)

# Environments that take minutes to make are no intermediate files.
.PRECIOUS: .venvs/sklearn-%/installed

bench-hypergradient: .venv/installed  ## time and memory of a hypergradient, against other engines
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench_hypergradient.py $(QUICK)

bench-pieces: .venv/installed  ## time of the small pieces of the engine
	$(BIN)/python benchmarks/bench_pieces.py

clean:  ## remove what the other targets made
	rm -rf .venv .venvs .pytest_cache .ruff_cache suspicious_digits.png
