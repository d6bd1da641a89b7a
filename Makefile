# Two commands: `make run` and `make test`. Everything else serves them.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test test-all test-changed check lock clean
.DEFAULT_GOAL := run

run: $(STAMP)
	$(BIN)/smelt up --demo $(ARGS)

# Two at a time: much of what is tested waits for processes, or for a compiler's one thread. In the
# order of the folders, so that slow files of few tests do not come last, one after the other.
TOGETHER := --numprocesses 2 --no-loadscope-reorder

# A thousand processes import the same modules: they are compiled once, whatever is set outside.
export PYTHONDONTWRITEBYTECODE :=

# What every change has to pass: each promise, with few cases of what takes long.
test: $(STAMP) check
	deploy/local/install_prometheus.sh
	$(BIN)/python -m pytest $(TOGETHER) -m "not slow" $(ARGS)

# Everything, and how much of the code it covers.
test-all: $(STAMP) check
	deploy/local/install_prometheus.sh
	$(BIN)/coverage erase
	$(BIN)/python -m pytest $(TOGETHER) --cov --cov-report=term:skip-covered $(ARGS)

# Slow tests that the changes since BASE reach; ARGS=--list only says which files these reach, and why.
test-changed: $(STAMP)
	PYTEST_ADDOPTS="$(TOGETHER) $$PYTEST_ADDOPTS" $(BIN)/python -m tests.changed $(BASE) $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/lint-imports

$(STAMP): requirements.lock pyproject.toml deploy/local/install.sh
	PYTHON="$(PYTHON)" deploy/local/install.sh
	touch $@

# Writes the lock from the newest versions that pyproject.toml admits.
lock:
	deploy/local/lock.sh

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .coverage*
