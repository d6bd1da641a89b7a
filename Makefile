# Two commands: `make run` and `make test`. Everything else serves them.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev
INSTALLED_BY := pyproject.toml $(addprefix deploy/local/,install.sh functions.sh installer.lock torch.lock)

.PHONY: run install test test-all test-changed check lock clean
.DEFAULT_GOAL := run

# What runs, and no tools to develop it.
install: $(STAMP)

run: $(STAMP)
	$(BIN)/smelt up --demo $(ARGS)

# Three at a time: much of what is tested waits for processes, or for a compiler's one thread. In the
# order of the folders, so that slow files of few tests do not come last, one after the other.
TOGETHER := --numprocesses 3 --no-loadscope-reorder

# A thousand processes import the same modules: they are compiled once, whatever is set outside.
export PYTHONDONTWRITEBYTECODE :=

# What every change has to pass: each promise, with few cases of what takes long.
test: $(DEV_STAMP) check
	deploy/local/install_prometheus.sh
	deploy/local/install_debian.sh docker-registry
	$(BIN)/python -m pytest $(TOGETHER) -m "not slow" $(ARGS)

# Everything. ARGS=--cov says how much of the code
# that covers, 85 % at least, and takes half as long again.
test-all: $(DEV_STAMP) check
	deploy/local/install_prometheus.sh
	deploy/local/install_debian.sh docker-registry
	$(BIN)/python -m pytest $(TOGETHER) $(ARGS)

# Slow tests that the changes since BASE reach; ARGS=--list only says which files these reach, and why.
test-changed: $(DEV_STAMP)
	PYTEST_ADDOPTS="$(TOGETHER) $$PYTEST_ADDOPTS" $(BIN)/python -m tests.changed $(BASE) $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/lint-imports

$(STAMP): requirements.lock requirements-gpu.lock $(INSTALLED_BY)
	PYTHON="$(PYTHON)" deploy/local/install.sh run
	touch $@

# What tests and checks need beside that.
$(DEV_STAMP): requirements.lock requirements-gpu.lock requirements-dev.lock $(INSTALLED_BY)
	PYTHON="$(PYTHON)" deploy/local/install.sh dev
	touch $(STAMP) $@

# Writes the locks from the newest versions that pyproject.toml admits; KEEP=1 keeps those locked.
lock:
	deploy/local/lock.sh

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .coverage*
