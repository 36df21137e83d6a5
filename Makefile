# Everything runs in .venv, which is made on first use. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Test processes of one thread each: more threads than cores get in each other's way.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo serve-demo test test-all check lint docs pictures bench tables mini mini-rn mini-vit data clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed ## Compare zero-shot with BayesTTA on two streams that drift; write demo.html.
	@$(BIN)/bayestta demo

serve-demo: $(VENV)/.installed-serve data ## Serve three simulated cameras that get dark, and tell the alarms.
	@OMP_NUM_THREADS=1 $(BIN)/python examples/serve_demo.py

test: $(VENV)/.installed-dev data ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

test-all: test $(VENV)/.installed-all chromium ## Run the slow tests too: browser, extras, kills, every bench file.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests_all

check: lint test ## Run ruff, mypy, the import contracts and the tests.

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs ## Build the documentation site into site/; warnings are errors.
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser; it needs no network."

pictures: $(VENV)/.installed data ## Make the picture of the README from a run.
	@$(BIN)/python docs/pictures.py

bench: $(VENV)/.installed-dev data ## Measure speed and memory, as ratios in one run.
	@for script in benchmarks/*.py; do echo "$$script"; $(BIN)/python "$$script" || exit 1; done

# The order is that of what one wants to know first. PETS is a folder all/CLASS/image of yours.
TABLES := readme safety safety_held_out noise_held_out held_out guard batch_size long_term tail controls ablation \
	sensitivity efficiency tent_collapse embedded full_length
tables: $(VENV)/.installed data ## Make all tables of docs/results.md (hours); a stopped one goes on. PETS=FOLDER adds pets.
	@mkdir -p runs
	@for data in light rmnist; do test -e runs/$$data-mini-rn.safetensors || $(BIN)/bayestta features \
		--data $$(echo $$data | sed s/light/cifar10-light/) --model mini-rn --limit 300 \
		--out runs/$$data-mini-rn.safetensors || exit 1; done
	@for name in $(TABLES); do $(BIN)/bayestta bench bench/$$name.toml || exit 1; done
	@if [ -n "$(PETS)" ]; then \
		test -e runs/pets-lit.safetensors || $(BIN)/bayestta features --data folder --root "$(PETS)" \
			--model lit --out runs/pets-lit.safetensors || exit 1; \
		$(BIN)/bayestta bench bench/pets.toml || exit 1; \
	fi
	@$(BIN)/python bench/lit.py $(if $(PETS),--pets "$(PETS)") > runs/lit.txt
	@for name in rho shift spectrum sorted_folder monitors many_classes; do \
		$(BIN)/python bench/$$name.py > runs/$$name.txt || exit 1; done
	@$(BIN)/python benchmarks/step.py > runs/step.txt
	@$(BIN)/python bench/results.py runs > docs/results.md

mini: $(VENV)/.installed data ## Train the embedded mini models; run again to go on after a stop.
	@$(MAKE) -j2 mini-rn mini-vit

mini-rn mini-vit: $(VENV)/.installed
	$(BIN)/python training/train_mini.py $@

data: $(VENV)/.installed
	@$(BIN)/bayestta data get cifar10 mnist

clean: ## Remove caches and build products; .venv and the data stay.
	rm -rf build dist site demo.html .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests tests_all training benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, alone and pinned: resolved with the rest, pip may pick a build with gigabytes
# of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(MAKE) --no-print-directory venv
	@echo "Installing torch into $(VENV): once, some minutes …"
	@$(PIP) torch
	@echo "Installing bayestta and what it needs …"
	@$(PIP) -e '.[lit]'
	@touch $@

$(VENV)/.installed-serve: $(VENV)/.installed
	@echo "Installing what the service needs …"
	@$(PIP) -e '.[lit,serve]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the tools for tests …"
	@$(PIP) -e '.[lit,serve,video,dev]'
	@touch $@

$(VENV)/.installed-all: $(VENV)/.installed-dev
	@echo "Installing the optional packages …"
	@$(PIP) -e '.[all,dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing the tools for the documentation …"
	@$(PIP) -e '.[lit,docs]'
	@touch $@

.PHONY: chromium
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "Installing Chromium …"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium > /dev/null; \
	else \
		echo "No Chromium found, which the tests of the report need: install it (Debian: as root," \
			"apt-get install chromium), then run again." >&2; exit 1; \
	fi

.PHONY: venv
venv:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3.10 python3; do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
			2>/dev/null; then \
			echo "Making $(VENV) with $$($$python --version) …"; exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "No Python 3.10 to 3.13 with venv found: install one (Debian: python3-venv), or name it with" \
		"make PYTHON=/path/to/python3" >&2; exit 1
