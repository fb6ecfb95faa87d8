# `make test` builds these side by side before whole-system tests begin: the crates' tests, which mostly wait once they
# are built, the release, and the other programs of those tests. make -j6 -O keeps the output of each in one piece.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
LOG := target/release-build.log
# Each cargo starts as many compilers as there are cores; make cannot limit them.
ALONE := env -u MAKEFLAGS -u MFLAGS
STREAMS := units tests-to-l tests-from-m documents

.PHONY: all built needs release $(STREAMS)
all: $(STREAMS) needs release

# Hence the +: its output is seen at once.
built:
	+@echo "building the release meanwhile; its output is in $(LOG)"
	+$(ALONE) cargo test --workspace --no-run

$(STREAMS): built
units:
	$(ALONE) cargo test --workspace --lib --bins
tests-to-l:
	$(ALONE) cargo test --workspace --test '[!m-z]*'
tests-from-m:
	$(ALONE) cargo test --workspace --test '[m-z]*'
documents:
	$(ALONE) cargo test --workspace --doc

# Programs and Python environments.
needs: built
	@$(ALONE) $(MAKE) --no-print-directory poisson programs venv-intel venv-openmpi suites

# Tests have time limits, compilers have not: nice.
release:
	@mkdir -p target
	@nice -n 10 $(ALONE) cargo build --release --workspace >$(LOG) 2>&1 || { cat $(LOG); exit 1; }
	@tail -n 1 $(LOG)
	@scripts/provider-name target/release
	@scripts/python-package target/release
