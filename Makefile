# Two commands matter: `make demo` shows Godwit at work, `make test` proves it.
# Downloads, compiled jars and test data are kept in GODWIT_CACHE, outside the checkout.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
export GODWIT_CACHE ?= $(HOME)/.cache/godwit
export UV_CACHE_DIR ?= $(GODWIT_CACHE)/uv
export UV_PYTHON_DOWNLOADS := never
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo $(GODWIT_CACHE)/tools/bin/uv)

ROOMS := planrewrite extractor orchestrator
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
UNIT := $(wildcard $(addprefix tests/,$(ROOMS) packaging tpc))
# The longest first: two run side by side.
LONG := $(addprefix tests/spark/test_,features.py tpcds.py activation.py tpch.py)
WHOLE := $(LONG) $(filter-out $(LONG),$(sort $(wildcard tests/spark/test_*.py tests/e2e/test_*.py)))
# By content, not by time: a fresh checkout of the same commit has nothing to install.
INPUTS := Makefile pyproject.toml setup.py uv.lock extractor/godwit.pth
STAMP := .venv/installed-$(shell (cat $(INPUTS); echo "$(CURDIR)") | sha256sum | cut -c1-16)

.PHONY: install check test demo sweep mutants bench data dist clean jar

install: $(STAMP) jar

$(STAMP): | $(filter /%,$(UV))
	@echo "installing into .venv"
	@$(UV) sync --quiet --frozen --extra spark --python $(PYTHON)
	@mkdir -p build/dev/godwit
	@for room in $(ROOMS); do ln -sfn ../../../$$room build/dev/godwit/$$room; done
	@# setuptools' import hook for editable installs hides the packages from mypy and import-linter.
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	rm -f $$site/__editable__*godwit*; \
	echo "$(CURDIR)/build/dev" > $$site/_godwit_checkout.pth; \
	cp extractor/godwit.pth $$site/
	@rm -f .venv/installed-*
	@touch $@

$(GODWIT_CACHE)/tools/bin/uv:
	@$(PYTHON) -m venv $(GODWIT_CACHE)/tools
	@$(GODWIT_CACHE)/tools/bin/pip install --quiet uv

jar: $(STAMP)
	@$(BIN)/python extractor/scala/jar.py extractor/jars

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	MYPYPATH=build/dev:. $(BIN)/mypy --strict -p godwit -p bench
	$(BIN)/lint-imports --no-logo
	$(PYTEST) $(UNIT)

# Each file in a process of its own: a Spark that a test has started lives as long as its process. Of two files side
# by side each prints what it has to say at its end; the first that fails ends it all.
test: check data
	@printf '%s\n' $(WHOLE) | xargs -P 2 -I{} bash -c \
	  'told=$$($(PYTEST) {} 2>&1) && code=0 || code=255; printf "%s\n%s\n" {} "$$told"; exit $$code'

demo: install
	@$(BIN)/godwit demo

sweep: install
	$(BIN)/python -m tests.tpc.sweep --sf 0.1 --random 1000 --table docs/sweep.md

# Bugs seeded into the fingerprint, one by one: the tests must catch each.
mutants: install
	$(BIN)/python -m tests.spark.mutants

bench: install
	for part in idle extract migrate snapshot; do $(BIN)/python -m bench.$$part; done

data: install
	@$(BIN)/python -m tests.tpc.data --sf 0.01

dist: install
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf .venv build dist extractor/jars godwit.egg-info
