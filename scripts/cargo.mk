# What `make test` asks of cargo, side by side: once the crates' tests are built they mostly wait, for each other and for time to pass,
# and the release is built meanwhile. make -j5 -O -f scripts/cargo.mk: each stream's output in one piece.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
LOG := target/release-build.log
# Each cargo starts as many compilers as there are cores; make has no say in it.
CARGO := env -u MAKEFLAGS cargo
STREAMS := units tests-to-l tests-from-m documents

.PHONY: all built release $(STREAMS)
all: $(STREAMS) release

# Hence the +: what it says is seen at once.
built:
	+@echo "building the release meanwhile; its output is in $(LOG)"
	+$(CARGO) test --workspace --no-run

$(STREAMS): built
units:
	$(CARGO) test --workspace --lib --bins
tests-to-l:
	$(CARGO) test --workspace --test '[!m-z]*'
tests-from-m:
	$(CARGO) test --workspace --test '[m-z]*'
documents:
	$(CARGO) test --workspace --doc

# Tests have time limits, compilers have not: nice.
release:
	@mkdir -p target
	@nice -n 10 $(CARGO) build --release --workspace >$(LOG) 2>&1 || { cat $(LOG); exit 1; }
	@tail -n 1 $(LOG)
	@scripts/provider-name target/release
