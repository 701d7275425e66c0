# `make help` lists the commands. Each sets up what it needs, says how long that takes, and is quick the second time.
# Works from a path with a space: everything is named relative to this folder.

.DEFAULT_GOAL := help
.PHONY: help demo test test-wide test-long mutate crash check bench bench-store bench-operator bench-capacity images wheels clean setup
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
LAB := PYTHONPATH=tools $(PY) -m lab
PYTEST := $(PY) -m pytest
# Most tests wait for something, so three processes share a run, also of two cores: see tests/fixtures/shares.py.
# Ctrl-C reaches all of them, and a process that is cut short cannot take its cluster down: `lab down` does it then.
TIDY := status=$$?; [ $$status -lt 2 ] || $(LAB) down >/dev/null 2>&1; exit $$status
TOGETHER := -n 3 --dist loadscope --no-loadscope-reorder
CHECKED := worker operator tools tests examples benchmarks
DRIFT := tests/unit/test_generated_crds.py tests/docs/test_reference.py tests/docs/test_links.py
ARGS ?=
SEED ?=

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "  The first run builds Kubernetes' own programs (about 10 minutes on 2 cores); they are kept for later ones."

demo: setup ## watch the main job on a real cluster: 2 minutes, once the tools are built
	@PYTHONPATH=examples:tools $(PY) -m demo $(ARGS)

test: setup ## every layer's tests: about 8 minutes, once the tools are built; ARGS="-k word" goes to pytest
	@echo "poolkeeper: the tests of every layer, about 8 minutes (about 15 more at first, for building the tools)" >&2
	@$(LAB) tools
	@trap : INT TERM; $(PYTEST) -m "not (wide or deep)" $(TOGETHER) $(ARGS); $(TIDY)

test-wide: setup ## what has no room there: every kind of fault; about 16 minutes more
	@$(LAB) tools
	@trap : INT TERM; $(PYTEST) -m "wide and not deep" $(TOGETHER) $(ARGS); $(TIDY)

test-long: setup ## all of it, with the deep runs: about two hours
	@echo "poolkeeper: the tests of every layer with the deep runs, about two hours" >&2
	@$(LAB) tools
	@trap : INT TERM; $(PYTEST) $(ARGS); $(TIDY)

mutate: setup ## take the guards out of the store's SQL one by one and see tests turn red; N=50 for a sample, ARGS="--only turn"
	@PYTHONPATH=tools $(PY) -m mutate $(if $(N),--sample $(N)) $(ARGS)

crash: setup ## seeded crashes of store and workers: make crash N=10000, or one again by SEED=7; options in ARGS
	@PYTHONPATH=tests:worker:tools $(PY) -m fixtures.crash $(if $(SEED),--seed $(SEED),-n $(or $(N),1000)) $(ARGS)

check: setup ## lint, format, types, import contracts, drift of what is generated, links: under a minute
	@failed=; \
	$(PY) -m ruff check . || failed=1; \
	$(PY) -m ruff format --check . || failed=1; \
	$(PY) -m mypy $(wildcard $(CHECKED)) || failed=1; \
	.venv/bin/lint-imports --no-logo || failed=1; \
	$(PYTEST) -q --no-header $(DRIFT) || failed=1; \
	[ -z "$$failed" ]

bench: bench-store bench-operator ## the figures of store and operator

bench-store: ## F1 to F11 beside peers and the floor: about an hour, five minutes with ARGS=--quick; then docs/comparison.md
	@tools/bootstrap dev bench
	@PYTHONPATH=tools:tests $(PY) -m benchmarks store $(ARGS)

bench-capacity: ## what one Postgres carries: half an hour, four minutes with ARGS=--quick; writes docs/capacity.md
	@tools/bootstrap dev bench
	@PYTHONPATH=tools:tests $(PY) -m benchmarks.capacity $(ARGS)

bench-operator: ## F20 and F25 on a control plane, F25 and F26 in simulation: about fifteen minutes; ARGS=KEDA: beside KEDA, which is built
	@tools/bootstrap dev bench
	@PYTHONPATH=tools:tests $(PY) -m benchmarks operator $(ARGS)

images: setup ## the container images from the Dockerfile: 2 minutes at first, seconds later
	@$(LAB) images

wheels: setup ## what the Dockerfile copies, for an image build by hand
	@$(LAB) wheels $(ARGS)

clean: ## stop what is left of a cluster, remove .venv and what was generated here
	@if [ -x $(PY) ]; then $(LAB) down; fi
	@rm -rf .venv .lab build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	@find worker operator tools tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

setup:
	@tools/bootstrap
