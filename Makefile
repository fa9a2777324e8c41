# make demo: from nothing to the answer    make test: everything CI runs    make help: all targets
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
MINUTES ?= 10
# what README and docs promise; a minute to five each
BENCH  ?= overhead short_job merge ops comms commands
# the variable, unlike the flag, also pins what the package is built with
PIP    := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --quiet --disable-pip-version-check

# two workers; tests of one file stay together, with what they share
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

# every process of the tests would compile our modules anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test lint quick-tests test-wheel test-plain compat bench stress fuzz fuzz-replay picture docs reference clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(wildcard merge/scan/compiled/*.[ch]) merge/scan/compiled/build.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) install --editable '.[test,peers,frameworks,docs]'
	$(PIP) install --no-deps torchvision lightning pytorch-lightning torchmetrics megatron-core torchtitan mlc-chakra
	DS_BUILD_OPS=0 $(PIP) install --no-deps --no-build-isolation deepspeed  # its setup imports torch
	touch $@

demo: $(VENV)/.installed ## record 4 ranks of examples/train_ddp.py, which ends with their merge, the answer and a report
	$(BIN)/distprof run --force --out $(RUN) --nproc-per-node 4 examples/train_ddp.py
	$(BIN)/distprof report $(RUN)

lint: $(VENV)/.test docs ## ruff, mypy --strict, import contracts, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.test ## the documentation as a site, in build/site; fails for a link or an anchor that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would let warnings pass

reference: $(VENV)/.installed ## remake the pages of docs/ that are made from the code
	$(BIN)/python docs/command_line.py
	$(BIN)/python docs/python_api.py
	$(BIN)/python docs/run_directory.py

quick-tests: $(VENV)/.test
	+$(PYTEST) -m 'not job and not long and not stress'

check: $(VENV)/.test ## lint and the quick tests, which start no job
	@$(MAKE) --no-print-directory --jobs=2 --output-sync quick-tests lint

test: check ## all tests
	$(PYTEST) -m '(job or long) and not stress'

test-wheel: $(VENV)/.test ## all tests, with the package as pip installs it
	rm -rf build/wheel
	$(PIP) wheel --no-deps --wheel-dir build/wheel .
	$(PIP) install --no-deps --target build/wheel/site build/wheel/*.whl
	cd build/wheel && PYTHONPATH=$(CURDIR)/build/wheel/site $(CURDIR)/$(PYTEST) -c $(CURDIR)/pyproject.toml \
		-m 'not stress' $(CURDIR)/tests  # elsewhere: where the sources lie they would be taken

test-plain: $(VENV)/.test ## the tests of merging, without the compiled scanner
	DISTPROF_PLAIN_ENGINE=1 $(PYTEST) tests/merge

compat: $(VENV)/.installed ## run the core of the tests with other versions of torch and Python: make compat WHICH=2.8
	$(PIP) install --editable '.[compat]'
	$(BIN)/python docs/compat.py $(WHICH)

bench: $(VENV)/.test ## measure what recording, merging and reading cost; fails where a ratio is worse than in RESULTS.md: make bench RECORD=1
	$(BIN)/python benchmarks/measuring/check.py $(BENCH) $(if $(RECORD),--record)

stress: $(VENV)/.test ## the long tests: jobs judged by time, many random examples
	$(BIN)/python -m pytest -m stress
	$(PYTEST) -m 'not job and not stress' --hypothesis-profile=stress -o timeout=0

fuzz: $(VENV)/.fuzz ## look for traces that break the engine or a merge: make fuzz MINUTES=60; needs clang
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES)

fuzz-replay: $(VENV)/.test ## run again what make fuzz found: make fuzz-replay FILE=runs/fuzz/crashes/...
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FILE)

$(VENV)/.fuzz: $(VENV)/.test
	$(PIP) install --editable '.[fuzz]' || echo 'merges are fuzzed without coverage: atheris cannot be installed here'
	touch $@

picture: $(VENV)/.installed ## remake the pictures in README and docs (needs Chromium)
	$(PIP) install --editable '.[picture]'
	$(BIN)/python docs/picture.py runs/picture docs/merged-trace.png
	$(BIN)/python docs/report_pictures.py runs/late docs

clean: ## remove what make made
	rm -rf $(VENV) runs benchmarks/.data build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
