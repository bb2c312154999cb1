# Every target creates what it needs: `make demo` or `make test` is all that a fresh clone wants.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test docs lint bench-hypergradient bench-pieces clean

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

# The pages refuse warnings; every script of the gallery and every example of the guide is run.
docs: .venv/installed  ## documentation with its gallery, into docs/_build/html
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going docs docs/_build/html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_docs.py docs/guide --doctest-glob='*.rst'

bench-hypergradient: .venv/installed  ## time and memory of a hypergradient, against other engines
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench_hypergradient.py $(QUICK)

bench-pieces: .venv/installed  ## time of the small pieces of the engine
	$(BIN)/python benchmarks/bench_pieces.py

clean:  ## remove what the other targets made
	rm -rf .venv .pytest_cache .ruff_cache suspicious_digits.png docs/_build docs/auto_examples docs/generated
