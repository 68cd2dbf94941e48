# Headrace's commands. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILT := $(VENV)/.built

.DEFAULT_GOAL := help
.PHONY: help setup tensorrt demo fmt lint test bench simulate lock clean

help: ## List the commands.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

$(STAMP): requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Headrace needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.lock
	@touch $@

$(BUILT): $(STAMP) Cargo.toml Cargo.lock build.rs pyproject.toml README.md $(wildcard src/*.rs) $(wildcard proto/*.proto)
	VIRTUAL_ENV=$(abspath $(VENV)) PATH=$(abspath $(BIN)):$$PATH $(BIN)/maturin develop --release >/dev/null
	@touch $@

setup: $(BUILT) ## Make .venv with all extras and build the wire into it, in release mode.

tensorrt: ## Install TensorRT for RTX and the lean runtime in .tensorrt, for tests of real plans; 350 MB.
	$(PYTHON) -m venv .tensorrt
	.tensorrt/bin/python -m pip install --disable-pip-version-check --quiet numpy onnx protobuf tensorrt-rtx-cu13==1.7.1.116 \
		tensorrt-lean-cu13-bindings==11.4.0.106 tensorrt-lean-cu13-libs==11.4.0.106

demo: setup ## A real model, a real picture, through shared memory; half a minute once built.
	$(BIN)/python -m examples.demo

fmt: setup ## Format Python and Rust; write the pages that are made from tables.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .
	cargo fmt
	$(BIN)/python -m headrace.config.flags > docs/flags.md
	$(BIN)/python -m headrace.config.onnx_settings > docs/onnx.md
	$(BIN)/python -m headrace.cli.comparison > docs/coming-from-triton.md

lint: setup ## Style, types, the import law, the extension's stub.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest headrace._wire --ignore-missing-stub
	$(BIN)/lint-imports
	cargo fmt --check
	cargo clippy --release --all-targets --quiet -- -D warnings

test: lint ## All checks and tests.
	cargo test --release --quiet
	$(BIN)/pytest -n 2 --dist loadfile

bench: setup ## Compare with the real Triton and write benchmarks/README.md; about 20 minutes.
	$(BIN)/python -m benchmarks.run

simulate: setup ## Schedules on 1, 2, 4 and 8 simulated GPUs in virtual time, against what is possible at best.
	$(BIN)/python -m benchmarks.simulate

lock: $(STAMP) ## Resolve the Python dependencies anew.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --no-header --quiet --no-strip-extras \
		--no-emit-index-url --no-emit-package perf-analyzer -o requirements.lock

clean: ## Remove what was built.
	rm -rf $(VENV) target
