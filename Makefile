# Every target creates what it needs: `make demo` or `make test` is all that a fresh clone wants.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-slow test-distributed test-versions docs lint clean bench-fit bench-hypergradient bench-pieces \
	bench-spheres bench-images bench-hypercleaning bench-tabular bench-digits bench-conformal bench-real-errors bench-scale \
	bench-tables

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plot,distributed,test]'
	@touch $@

demo: .venv/installed  ## find planted label errors in handwritten digits
	$(BIN)/python examples/demo_digits.py

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache

# Two workers of one thread each: threads of two workers would fight over the cores.
test: lint  ## ruff, import layers, tests and doctests, but for the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not slow"

test-slow: .venv/installed  ## the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m slow tests

# The oldest scikit-learn that is supported, the last without callbacks in between, and whatever is newest.
SKLEARN_VERSIONS := 1.6.1 1.7.2 newest
SKLEARN_TESTS := tests/test_common.py tests/test_routing.py tests/test_filtered.py tests/test_metrics.py tests/test_cache.py

test-distributed: .venv/installed  ## a dask cluster of two workers, one of which is killed
	SKLEARN_CDGD_CLUSTER=1 $(BIN)/python -m pytest tests/test_distributed.py

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

# The pages refuse warnings; every script of the gallery and every example of the guide is run.
docs: .venv/installed  ## documentation with its gallery, into docs/_build/html
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going docs docs/_build/html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_docs.py docs/guide --doctest-glob='*.rst'

.venv/bench: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

# The benchmarks go on where they were stopped. QUICK=--quick takes minutes, to see that they run.
bench-spheres: .venv/bench  ## P1, concentric spheres: our defaults against the peers, and the paper's settings
	$(BIN)/python benchmarks/bench_spheres.py $(QUICK)
	$(BIN)/python benchmarks/bench_spheres.py --paper $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-images: .venv/bench  ## P2, MNIST and CIFAR-10 with the paper's convolutions
	$(BIN)/python benchmarks/bench_images.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-hypercleaning: .venv/bench  ## P3, MNIST with half the labels polluted
	$(BIN)/python benchmarks/bench_hypercleaning.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-tabular: .venv/bench  ## P4, tables with wrong labels and targets
	$(BIN)/python benchmarks/bench_tabular.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-digits: .venv/bench  ## digits with wrong labels
	$(BIN)/python benchmarks/bench_digits.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-conformal: .venv/bench  ## flags with a guarantee: false discovery proportion and power
	$(BIN)/python benchmarks/bench_conformal.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-real-errors: .venv/bench  ## P5, errors that people made; LABELS=folder of the label files
	$(BIN)/python benchmarks/bench_real_errors.py $(if $(LABELS),--labels $(LABELS)) $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-scale: .venv/bench  ## time, memory and F1 from 10^3 to 10^6 rows; one and two workers; shards
	$(BIN)/python benchmarks/bench_scale.py $(QUICK)
	$(BIN)/python benchmarks/render.py

bench-tables: .venv/bench  ## render all results that are there
	$(BIN)/python benchmarks/render.py

bench-hypergradient: .venv/bench  ## time and memory of a hypergradient, against other engines
	$(BIN)/python benchmarks/bench_hypergradient.py $(QUICK)

bench-fit: .venv/bench  ## time, stages and memory of a default fit; AGAINST=folder of another checkout to time beside it
	$(BIN)/python benchmarks/bench_fit.py $(if $(AGAINST),--against $(AGAINST)) $(QUICK)

bench-pieces: .venv/installed  ## time of the small pieces of the engine
	$(BIN)/python benchmarks/bench_pieces.py

clean:  ## remove what the other targets made
	rm -rf .venv .venvs .pytest_cache .ruff_cache suspicious_digits.png docs/_build docs/auto_examples docs/generated
