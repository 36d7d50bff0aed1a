PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --no-deps
LOG := .venv/setup.log

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-pythons dist reliability lint lock bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 18

setup: .venv/.installed ## prepare .venv; works again only when requirements.lock or pyproject.toml has changed

.venv/.installed: requirements.lock pyproject.toml | $(BIN)/python
	@$(libraries)
	@echo "setup: installing the libraries of requirements.lock, and gpi-rl with its tests and tools, into .venv"
	@$(PIP) --requirement requirements.lock >$(LOG) 2>&1 || { $(failed); }
	@$(PIP) --no-build-isolation --editable . >>$(LOG) 2>&1 || { $(failed); }
	@touch $@
	@echo "setup: done; next: '. .venv/bin/activate', then 'gpi doctor' and 'gpi train cheetah-run --steps 200000'"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "setup: '$(PYTHON)' is missing or older than Python 3.11; name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "setup: '$(PYTHON)' cannot make environments: ensurepip is missing; run: apt-get install python3-venv" >&2; exit 1; }
	@echo "setup: making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The last error of pip in one line; the rest is in the log.
define failed
why=$$(grep -E '^ *([A-Za-z.]*Error|error|ERROR): ' $(LOG) | grep -v -- '-failed$$' | tail -n 1 | cut -c 1-300); \
  echo "setup: pip failed: $${why:-see its last lines}; all it said is in $(LOG); then 'make setup' tries again" >&2; exit 1
endef

# EnvPool's wheel brings its own copies of these two, other builds need the system's: so no more than a warning.
define libraries
$(BIN)/python -c 'import ctypes; [ctypes.CDLL(name) for name in ("libEGL.so.1", "libOpenGL.so.0")]' 2>/dev/null || { \
  if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi; \
  if command -v apt-get >/dev/null && $$as_root true 2>/dev/null; then \
    echo "setup: installing the system libraries libegl1 and libopengl0"; \
    $$as_root apt-get update >/dev/null 2>&1; $$as_root apt-get install -y libegl1 libopengl0 >/dev/null 2>&1; \
  else false; fi || \
  echo "setup: if EnvPool misses libEGL or libOpenGL, run: apt-get install libegl1 libopengl0"; }
endef

train: setup ## train GePPO with 5 seeds on cheetah-run for a few minutes and draw its learning curve
	$(BIN)/gpi train cheetah-run --algorithm geppo --seeds 5 --steps 200000

test: lint ## check style and types, then run the quick tests
	$(BIN)/pytest -n 2 --dist loadgroup

test-slow: setup ## run the tests that take minutes
	$(BIN)/pytest -m slow

test-pythons: setup ## from a fresh clone, set up, lint and run the quick tests with every Python from 3.11 on
	$(BIN)/python tools/pythons.py test

dist: setup ## build wheel and sdist into dist/, and try the wheel alone, by pip and by uv, with every Python from 3.11 on
	$(BIN)/python tools/pythons.py dist

reliability: setup ## kill, corrupt and fill up: the full numbers of docs/reliability.md, which take an hour on 2 cores
	$(BIN)/pytest -m slow tests/test_file_durability.py tests/test_hostile_files.py tests/test_resume.py
	$(BIN)/python benchmarks/reliability.py

lint: setup ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

bench: .venv/.bench ## measure throughput beside Stable-Baselines3
	$(BIN)/python benchmarks/throughput.py

.venv/.bench: .venv/.installed
	@echo "setup: installing Stable-Baselines3 into .venv"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint requirements.lock --group bench
	@touch $@

lock: | $(BIN)/python ## find the newest versions that pyproject.toml allows, for all Pythons, and write requirements.lock
	@$(PIP) --quiet 'uv>=0.9'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --no-annotate \
	  --upgrade --custom-compile-command 'make lock' pyproject.toml --output-file requirements.lock

docs: setup ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open site/index.html; its search needs a server: $(BIN)/python -m http.server --directory site"

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -prune -exec rm -rf {} +
