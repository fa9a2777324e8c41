# make demo: from nothing to the answer    make test: everything CI runs    make help: all targets
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
# the variable, unlike the flag, also pins what the package is built with
PIP    := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench stress picture clean

help: ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py merge/scan/scan.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) --editable '.[test,peers]'
	$(PIP) --no-deps torchvision
	DS_BUILD_OPS=0 $(PIP) --no-deps --no-build-isolation deepspeed  # its setup imports torch
	touch $@

demo: $(VENV)/.installed ## record 4 ranks of examples/train_ddp.py, merge them and print the answer
	$(BIN)/distprof run --force --out $(RUN) --nproc-per-node 4 examples/train_ddp.py
	$(BIN)/distprof merge $(RUN)
	$(BIN)/distprof stats $(RUN)

lint: $(VENV)/.test ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint and all tests
	$(BIN)/python -m pytest

bench: $(VENV)/.test ## measure what recording costs and how fast merging is, against others
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/merge.py

stress: $(VENV)/.test ## the long tests
	$(BIN)/python -m pytest -m stress

picture: $(VENV)/.installed ## remake the picture in README (needs Chromium)
	$(PIP) --editable '.[picture]'
	$(BIN)/python docs/picture.py runs/picture docs/merged-trace.png

clean: ## remove what make made
	rm -rf $(VENV) runs benchmarks/.data build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
