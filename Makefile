# The commands of this project, the same for developers and in CI. They need Python 3.11
# or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q

.NOTPARALLEL:
.PHONY: help demo test test-all test-rest slow coverage docs release bench format clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile

demo: $(VENV)/.installed ## install, then train on embedded data and write demo/report.html
	$(BIN)/cirm demo

test: $(VENV)/.installed-dev ## lint, format, types, doctests and the fast tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy & types=$$!; $(PYTEST) -m "not slow and not integration"; tests=$$?; \
	  wait $$types && exit $$tests

test-all: test test-rest ## all tests but the slow ones, the notebooks and the documentation

test-rest: $(VENV)/.installed-dev ## what test-all runs after test
	$(PYTEST) -m "integration and not slow"
	$(MAKE) docs

slow: $(VENV)/.installed-dev ## tests that reproduce published numbers; minutes each
	$(PYTEST) -m slow

coverage: $(VENV)/.installed-dev ## the tests of test-all, with the lines that they miss
	$(PYTEST) -m "not slow" --cov=cirm --cov-report=term-missing:skip-covered

docs: $(VENV)/.installed-dev ## run the notebooks and build the documentation into site
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

release: $(VENV)/.installed-dev ## build wheel and sdist, and run the demo from each
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/check_release.py dist/*.whl dist/*.tar.gz

bench: $(VENV)/.installed ## time the learners; PEERS=path/to/python compares with other packages
	OMP_NUM_THREADS=1 $(BIN)/cirm bench $(if $(PEERS),--peers $(PEERS))

format: $(VENV)/.installed-dev ## sort imports and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove everything that make has created, .venv included
	rm -rf $(VENV) demo bench build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files, so that nothing is installed twice. Both installations are editable:
# what runs is always the source in src.
$(VENV)/.created:
	$(if $(filter True,$(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)),,\
	  $(error $(PYTHON) is $(or $(shell $(PYTHON) -c 'import platform; print("Python", platform.python_version())' 2>/dev/null),not an interpreter that runs). Python 3.11 or newer is needed: choose one with make PYTHON=python3.12))
	$(if $(filter yes,$(shell $(PYTHON) -c 'import ensurepip, venv; print("yes")' 2>/dev/null)),,\
	  $(error $(PYTHON) cannot create virtual environments. On Debian and Ubuntu install the package python3-venv))
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing cirm into $(VENV) (torch is large: this can take minutes)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing cirm and its development tools into $(VENV) (torch is large: this can take minutes)"
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.installed $@
