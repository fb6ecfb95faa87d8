# What `make test` asks of cargo, two things at once: the crates' own tests mostly wait, and the release is built meanwhile.
# Both take part in make's jobserver (hence the +), so no more compilers run than make was allowed: make -j2 -f scripts/cargo.mk
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PACKAGES ?= --workspace
LOG := target/release-build.log

.PHONY: all tests release
all: tests release

tests:
	+cargo test $(PACKAGES)

# Tests have time limits, compilers have not: nice. Kept in a file, so that the lines of the two are not mixed.
release:
	@mkdir -p target
	@echo "building the release meanwhile; its output is in $(LOG)"
	+@nice -n 10 cargo build --release $(PACKAGES) >$(LOG) 2>&1 || { cat $(LOG); exit 1; }
	@tail -n 1 $(LOG)
	@scripts/provider-name target/release
