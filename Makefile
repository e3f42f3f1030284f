# Every target builds its own virtual environment when it needs one; nothing has to be installed by hand but Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo needs a third of the packages. It takes the whole environment where that is built.
DEMO := $(if $(wildcard $(READY)),$(VENV),$(VENV)-demo)
# Plain KEY=VALUE: versions of what is fetched.
include tools/versions.env
# The lists name every package with its hashes; our own packages have none.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps
PIP := $(BIN)/python $(PIP_INSTALL)

.DEFAULT_GOAL := help
.PHONY: help demo examples chart test test-all soak properties sieve fuzz mutants mutants-sample unit lint licences audit docs format conformance e2e kind kind-down actionlint bench bench-kind bench-page forecasts micro bench-compare helm lock clean

help: ## show this list; docs/development.md lists all targets
	@grep -E -h '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

PROJECTS := pyproject.toml gracectl/__init__.py kubesim/pyproject.toml
NEW_ENOUGH := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gracectl needs Python 3.11 or newer; name one with make PYTHON=python3.12")'

$(READY): $(PROJECTS) constraints.txt
	@$(NEW_ENOUGH)
	@echo 'make: installing $(words $(shell grep -oE '^[a-z0-9._-]+==' constraints.txt)) packages for tests and lint into $(VENV); about two minutes'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement constraints.txt
	@$(PIP) --no-build-isolation --editable ./kubesim --editable .
	@touch $(READY)

$(VENV)-demo/.ready: $(PROJECTS) deploy/container/requirements.txt deploy/container/build-requirements.txt
	@$(NEW_ENOUGH)
	@echo 'make: installing $(words $(shell grep -oE '^[a-z0-9._-]+==' deploy/container/requirements.txt)) packages for the demo into $(VENV)-demo; about 20 seconds'
	@$(PYTHON) -m venv $(VENV)-demo
	@$(VENV)-demo/bin/python $(PIP_INSTALL) --require-hashes --requirement deploy/container/requirements.txt --requirement deploy/container/build-requirements.txt
	@$(VENV)-demo/bin/python $(PIP_INSTALL) --no-build-isolation --editable ./kubesim --editable .
	@touch $@

demo: $(DEMO)/.ready ## drain three nodes of an embedded cluster (ARGS=--ui: on the board as well; ARGS='--nodes 20 -o json')
	@$(DEMO)/bin/gracectl demo $(ARGS)

examples: $(READY) ## play the examples of the docs on virtual time (ARGS=--update writes them there; ARGS='board --update': only that)
	$(BIN)/python -m examples $(ARGS)

HELM := $(BIN)/helm
GO := $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go))

helm: $(READY) # helm of a known version, beside our Python; tests of the chart need it
	@test -x $(HELM) || tools/helm.sh $(HELM_VERSION) $(HELM) "$(GO)"

chart: $(READY) helm ## generate schema, tables of docs/chart.md and docs/metrics.md, and helm/manifests (ARGS=--check: only compare)
	$(BIN)/python tools/chart.py $(ARGS)

# Three workers a core: a story mostly waits for other processes. WORKERS=0 runs all in one process, for a debugger.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(3 * (os.cpu_count() or 1))')
# A file is run by one worker: what its tests share is built once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Stories start hundreds of processes; without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

test: $(READY) ## run the tests except searches, floods and the browser: five minutes (ARGS='-k lane' passes options)
	-@$(MAKE) --no-print-directory helm
	$(PYTEST) -m 'not thorough' $(ARGS)

test-all: $(READY) ## run every test, with 100 examples of each property (ARGS='-k lane')
	-@$(MAKE) --no-print-directory helm
	$(PYTEST) --hypothesis-profile thorough $(ARGS)

SEEDS ?= 300

soak: $(READY) ## simulate SEEDS=300 random worlds, histories and faults; shrink and explain failures (ARGS='--workers 1')
	PYTHONPATH=tests:kubesim/tests:. $(BIN)/python -m simulation 1-$(SEEDS) $(ARGS)

properties: $(READY) # the other tests of random worlds and properties, with many of them: SEEDS=300; half an hour
	GRACECTL_SEEDS=$(SEEDS) $(PYTEST) --dist worksteal --timeout 900 -m 'seeds or hypothesis' --hypothesis-profile soak $(ARGS)

sieve: $(READY) # every story of tests/simulation/sieve, disturbed at each of its points; a few minutes (ARGS='-k budget')
	GRACECTL_SIEVE=all $(PYTEST) --dist worksteal --timeout 900 tests/simulation/sieve $(ARGS)

SECONDS ?= 60

fuzz: $(READY) ## feed hostile bytes to every decoder of foreign data for SECONDS=60 (ARGS='pods headers': only these)
	PYTHONPATH=tests:. $(BIN)/python -m fuzz $(SECONDS) $(ARGS)

mutants: $(READY) ## plant known bugs, one at a time; tests must catch each: five minutes (ARGS='NAME …' or '-j 1')
	PYTHONPATH=tests:. $(BIN)/python -m mutants $(ARGS)

$(VENV)/.sample: $(READY) tests/mutants/requirements.txt
	$(PIP) --require-hashes --requirement tests/mutants/requirements.txt
	@touch $@

mutants-sample: $(VENV)/.sample # the share of 150 random mutations that the fast tests of policy and eviction catch (ARGS='-n 20 --seed 7')
	PYTHONPATH=tests:. $(BIN)/python -m mutants.sample $(ARGS)

unit: $(READY) ## run the tests that start no other program: a minute
	$(PYTEST) -m 'not thorough' tests --ignore tests/e2e --ignore tests/browser --ignore tests/unit/cli --ignore tests/unit/benchmarks $(ARGS)

kind: ## run gracectl on a cluster in Docker with fake nodes, traces, metrics and a stuck drain (KUBERNETES=1.36 NODES=50)
	tools/kind-up

kind-down: # remove that cluster
	tools/kind-down

# A Go program, too; it has shellcheck look at the commands of workflows.
ACTIONLINT := $(BIN)/actionlint

actionlint: $(READY) # actionlint beside our Python, built by Go; make lint looks at the workflows with it, if it is there
	@test -x $(ACTIONLINT) || GOBIN=$(abspath $(BIN)) CGO_ENABLED=0 GOFLAGS=-mod=mod $(GO) install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

SCRIPTS := tools/kind-up tools/kind-down tools/bench-kind tools/release tools/plugin tools/clean-install tools/lib.sh tools/helm.sh tools/lock.sh .ci/run .ci/nightly

BASE_BRANCH ?= origin/main
SUBJECT := length > 72 || !/^[a-z0-9, -]+: / { print "commit subject: " $$0 ": write area: imperative, in at most 72 characters"; bad = 1 } END { exit bad }

lint: docs ## run ruff, mypy, import-linter, word list, licenses, shellcheck, zizmor, actionlint; build the docs site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/words.py
	$(BIN)/python tools/licences.py
	@! git rev-parse -q --verify $(BASE_BRANCH) > /dev/null 2>&1 || git log --no-merges --format=%s $(BASE_BRANCH).. | awk '$(SUBJECT)'
	$(BIN)/shellcheck --external-sources $(SCRIPTS)
	$(BIN)/zizmor --offline --quiet --no-progress .github
	@if [ -x $(ACTIONLINT) ]; then $(ACTIONLINT) -shellcheck $(BIN)/shellcheck -pyflakes ''; \
		else echo 'actionlint: not there, so not run; make actionlint builds it, with Go'; fi

licences: $(READY) # licences of all dependencies against docs/licences.md (ARGS=--update writes it)
	$(BIN)/python tools/licences.py $(ARGS)

LISTS := constraints.txt deploy/container/build-requirements.txt benchmarks/requirements.txt tools/requirements.txt tools/audit/requirements.txt

$(VENV)/.audit: $(READY) tools/audit/requirements.txt
	$(PIP) --require-hashes --requirement tools/audit/requirements.txt
	@touch $@

audit: $(VENV)/.audit # known vulnerabilities of all dependencies; dependencies that nothing imports, or that are imported but not declared
	$(BIN)/deptry gracectl
	cd kubesim && $(abspath $(BIN))/deptry kubesim
	$(BIN)/pip-audit --progress-spinner off --disable-pip --require-hashes $(LISTS:%=--requirement %)

docs: $(READY) # build the site of docs/ into build/site; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'The site is in build/site. To read and search it: $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000'
	@echo 'then open http://127.0.0.1:8000/ (the search does not work from files)'

format: $(READY) ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

e2e: $(READY) ## run the end-to-end stories against a cluster: make e2e KUBECONFIG=~/.kube/config
	@test -n "$(KUBECONFIG)" || { echo 'make e2e needs a cluster: make e2e KUBECONFIG=/path/to/kubeconfig'; exit 2; }
	GRACECTL_E2E_KUBECONFIG=$(KUBECONFIG) $(BIN)/python -m pytest tests/e2e $(ARGS)

conformance: $(READY) ## compare kubesim with recordings of a real API server, or with a cluster (KUBECONFIG=~/.kube/config)
	$(MAKE) --no-print-directory -C kubesim conformance

bench: $(READY) ## measure the budgets of the design, ten minutes (ARGS=storm: one of them; ARGS='--kubeconfig F': on a cluster)
	$(BIN)/python -m benchmarks $(ARGS)

$(VENV)/.bench: $(READY) benchmarks/requirements.txt
	$(PIP) --require-hashes --requirement benchmarks/requirements.txt
	@touch $@

bench-kind: $(READY) # on a cluster in Docker that is removed at the end, with 100, 500 and 1,000 fake nodes (NODES=100 SCENARIOS=scale)
	tools/bench-kind

FORECASTS := docs/benchmarks/forecasts.json

forecasts: $(READY) # how many forecasts come true, in simulated histories and in the scenarios of gracectl simulate: ten minutes
	PYTHONPATH=tests:kubesim/tests:. $(BIN)/python -m simulation 1-1000 --save $(FORECASTS)
	PYTHONPATH=tests:kubesim/tests:. $(BIN)/python -m simulation.scenarios --save $(FORECASTS)

bench-page: $(VENV)/.bench # put what was measured (ARGS of make bench: --save docs/benchmarks/embedded.json) into docs/benchmarks.md, with pictures
	$(BIN)/python -m benchmarks.page $(ARGS)

micro: $(READY) ## measure the CPU time of single parts, in µs and relative to a yardstick (ARGS='-k queue')
	$(BIN)/python -m pytest -c benchmarks/micro/pytest.ini benchmarks/micro $(ARGS)

bench-compare: $(READY) # those of this tree against its package and that of another revision: make bench-compare BASE=main
	$(BIN)/python -m benchmarks.compare "$(BASE)" $(ARGS)

# Resolves for all Pythons and systems at once, and leaves versions as they are but for ARGS.
lock: $(READY) ## pin versions and hashes of all dependencies after a change in pyproject.toml (ARGS=--upgrade: newest)
	$(PIP) uv==$(UV_VERSION)
	PATH="$(abspath $(BIN)):$$PATH" UV_VERSION=$(UV_VERSION) tools/lock.sh $(ARGS)

clean: ## remove what make has built
	rm -rf $(VENV) $(VENV)-demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
