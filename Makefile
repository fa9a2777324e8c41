# make demo: from nothing to the answer    make test: lint and the tests    make help: all targets
# the first that runs, is new enough and can make environments (Debian's cannot without python3-venv); a name alone proves
# nothing: pyenv has one for each version, and runs the chosen one only
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python $(wildcard $(HOME)/.pyenv/versions/3.1[1-4].*/bin/python)
FITS   := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(shell for each in $(PYTHONS); do "$$each" -c '$(FITS)' 2>/dev/null && echo "$$each" && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
MINUTES ?= 10
# what README and docs promise; a minute to five each
BENCH  ?= overhead short_job merge ops comms commands
# the variable, unlike the flag, also pins what the package is built with
PIP    := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --quiet --disable-pip-version-check

# four workers for two processors: many tests wait; one that has nothing left takes tests of the others
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

# files of tests live for a moment: in memory, where 4 GB of it are free, they cost a tenth less time
export PYTEST_DEBUG_TEMPROOT ?= $(shell [ "$$(df --output=avail /dev/shm 2>&1 | tail -1)" -gt 4000000 ] && echo /dev/shm)

# every process of the tests would compile our modules anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test lint quick-tests tests thorough costs dist test-wheel test-plain compat bench stress fuzz fuzz-replay picture docs reference clean mutants

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

$(BIN)/python:
	$(or $(PYTHON),$(error no Python 3.11 to 3.14 with venv found: install one (Debian: python3-venv), or make PYTHON=/path/to/python)) -m venv $(VENV)

# by the link: the sdist has no merge/
ENGINE := distprof/compiled
$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(wildcard $(ENGINE)/*.[ch]) $(ENGINE)/build.py | $(BIN)/python
	$(PIP) install --editable '.[record]'
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) install --editable '.[record,test,peers,frameworks,docs,dist]'
	$(PIP) install --no-deps torchvision lightning pytorch-lightning torchmetrics megatron-core torchtitan mlc-chakra
	DS_BUILD_OPS=0 $(PIP) install --no-deps --no-build-isolation deepspeed  # its setup imports torch
	touch $@

demo: $(VENV)/.installed ## distprof demo: record a small job with a late rank, and find it
	$(BIN)/distprof demo --force --out $(RUN)

lint: $(VENV)/.test docs ## ruff, mypy --strict, import contracts, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.test ## build the documentation site in build/site; fails on broken links and anchors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would let warnings pass

reference: $(VENV)/.installed ## regenerate the pages of docs/ that are generated from code
	$(BIN)/python docs/command_line.py
	$(BIN)/python docs/python_api.py
	$(BIN)/python docs/run_directory.py

quick-tests: $(VENV)/.test
	+$(PYTEST) -m 'not job and not long and not thorough and not stress'

check: $(VENV)/.test ## lint and the quick tests, which start no job
	@$(MAKE) --no-print-directory --jobs=2 --output-sync quick-tests lint

tests: $(VENV)/.test
	+$(PYTEST) -m 'not thorough and not stress'

test: $(VENV)/.test ## lint and the tests: of those that cost much, some forms or none
	@$(MAKE) --no-print-directory --jobs=2 tests lint

thorough: $(VENV)/.test ## the tests and forms of tests that make test leaves to CI: tests/thorough.txt
	+$(PYTEST) -m 'thorough and not stress'

costs: $(VENV)/.test ## measure what tests cost, and choose those that make test leaves to CI
	rm -rf build/costs && mkdir -p build/costs
	+TEST_COSTS=$(CURDIR)/build/costs $(PYTEST) -m 'not stress'
	PYTHONPATH=tests $(BIN)/python -m support.costs build/costs

dist: $(VENV)/.dist ## build the release files in dist/: an sdist, and wheels for Linux and for other systems
	$(BIN)/python docs/release.py

# what records is not needed for it
$(VENV)/.dist: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --editable '.[dist]'
	touch $@

test-wheel: $(VENV)/.test dist ## all tests, with the packaged wheel
	rm -rf build/wheel
	$(PIP) install --no-deps --no-index --find-links dist --target build/wheel/site distprof
	cd build/wheel && PYTHONPATH=$(CURDIR)/build/wheel/site $(CURDIR)/$(PYTEST) -c $(CURDIR)/pyproject.toml \
		-m 'not stress' $(CURDIR)/tests  # elsewhere: where the sources lie they would be taken

test-plain: $(VENV)/.test ## the tests of merging, without the compiled scanner
	DISTPROF_PLAIN_ENGINE=1 $(PYTEST) tests/merge

compat: $(VENV)/.installed ## run the core of the tests with other versions of torch and Python: make compat WHICH=2.8
	$(PIP) install --editable '.[compat]'
	$(BIN)/python docs/compat.py $(WHICH)

bench: $(VENV)/.test ## measure the cost of recording, merging and reading; fails if a ratio is worse than in RESULTS.md: make bench RECORD=1
	$(BIN)/python benchmarks/measuring/check.py $(BENCH) $(if $(RECORD),--record)

stress: $(VENV)/.test ## the long tests: jobs judged by time, many random examples
	$(BIN)/python -m pytest -m stress
	$(PYTEST) -m 'not job and not stress' --hypothesis-profile=stress -o timeout=0

fuzz: $(VENV)/.fuzz ## look for traces that break the engine or a merge: make fuzz MINUTES=60; needs clang
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES)

fuzz-replay: $(VENV)/.test ## rerun a finding of make fuzz: make fuzz-replay FILE=runs/fuzz/crashes/...
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FILE)

$(VENV)/.fuzz: $(VENV)/.test
	$(PIP) install --editable '.[fuzz]' || echo 'merges are fuzzed without coverage: atheris cannot be installed here'
	touch $@

picture: $(VENV)/.installed ## regenerate the pictures in README and docs (needs Chromium)
	$(PIP) install --editable '.[picture]'
	$(BIN)/python docs/picture.py runs/picture docs/merged-trace.png
	$(BIN)/python docs/report_pictures.py runs/late docs

clean: ## remove everything that make created
	rm -rf $(VENV) runs benchmarks/.data build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

mutants: $(VENV)/.test ## plant faults in a copy of the tree and check that tests find them: tests/mutants/faults.toml
	$(BIN)/python tests/mutants/plant.py
