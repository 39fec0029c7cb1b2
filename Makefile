# Every target installs what it needs first; `make demo` and `make test` need only Python 3.11+, make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= $(or $(AGENTLOAD_VLLM_VENV),$(CURDIR)/.venv-vllm)

# Whole clusters, each with a heartbeat, a browser, and instants held against a plan: one after the
# other. The rest shares two processes.
ALONE := tests/netns tests/browser tests/e2e/test_sim_server_offline.py
TEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m "not vllm and not bench" --durations=15

.PHONY: help install dev demo test vllm-env test-vllm check audit e2e bench peers image fmt clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

install: $(VENV)/.runtime ## install what running needs

dev: $(VENV)/.dev ## install what developing needs

demo: install ## the 2 x 2 experiment on the embedded vLLM simulator: a table and a report in about four minutes
	@$(BIN)/agentload experiment experiments/chunked-prefill-x-prefix-cache.yaml

test: dev ## the test suite; what needs root, a browser or Prometheus is skipped where they are missing
	$(TEST) -n 2 --dist loadfile $(ALONE:%=--ignore=%)
	$(TEST) $(ALONE)

vllm-env: ## a real vLLM on the CPU with a tiny model, for the tests: 2.5 GB, two to six minutes
	$(PYTHON) tests/vllm/install.py $(VLLM_VENV)

test-vllm: dev vllm-env ## the whole line against that vLLM: about five minutes
	AGENTLOAD_VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest tests/vllm -m vllm

check: dev ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: dev ## known vulnerabilities of the pinned dependencies
	$(BIN)/python .ci/audit.py constraints.txt

image: ## the container image, with podman or CONTAINER=docker
	$(or $(CONTAINER),podman) build -t agentload:0.1.0 .

fmt: dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

e2e: dev ## only the end-to-end tests
	$(BIN)/python -m pytest tests/e2e

bench: dev ## the benchmarks of the simulator, the client, the master and the live page, on an idle machine
	$(BIN)/python tests/bench/bench_sim_core.py --growth
	$(BIN)/python tests/bench/bench_sim_server.py
	$(BIN)/python tests/bench/bench_client.py --realtime
	$(BIN)/python tests/bench/bench_master.py
	$(BIN)/python tests/bench/bench_shards.py
	$(BIN)/python tests/bench/bench_live.py

peers: dev ## other load generators on the same server, each in an environment of its own
	$(BIN)/python tests/bench/bench_peers.py $(or $(PEERS),$(CURDIR)/.peers) --install

clean: ## remove the environments and caches, never the runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
