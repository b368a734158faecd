# The commands of this project, the same at home and in CI. They need Python 3.11 or
# newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.NOTPARALLEL:
.PHONY: help demo test slow bench format clean

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## /make \1: /p' Makefile

demo: $(VENV)/.installed ## install, and run the main job on embedded data
	$(BIN)/cirm demo

test: $(VENV)/.installed-dev ## lint, format, types and the fast tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n 2 -q

slow: $(VENV)/.installed-dev ## the tests that reproduce published numbers
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n 2 -q

bench: $(VENV)/.installed ## time the learners; PEERS=path/to/python compares with other packages
	OMP_NUM_THREADS=1 $(BIN)/cirm bench $(if $(PEERS),--peers $(PEERS))

format: $(VENV)/.installed-dev ## put imports and layout in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove all that make has made, .venv too
	rm -rf $(VENV) demo bench build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps, so that nothing is installed twice. Both installations are editable:
# what runs is always the source in src.
$(VENV)/.created:
	$(if $(filter True,$(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)),,\
	  $(error $(PYTHON) must be Python 3.11 or newer; got $(or $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null),nothing that runs) (choose one with make PYTHON=python3.12)))
	$(if $(filter yes,$(shell $(PYTHON) -c 'import ensurepip, venv; print("yes")' 2>/dev/null)),,\
	  $(error $(PYTHON) must be able to make virtual environments (on Debian and Ubuntu install python3-venv)))
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing cirm into $(VENV) (torch is large: this can take minutes)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing cirm and its tools into $(VENV) (torch is large: this can take minutes)"
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.installed $@
