# The needs of `make demo`, built side by side: Landbridge's four files, by a profile that compiles soon rather than runs
# fast, and the solver with its Python environment. make -j2 -f scripts/demo.mk
SHELL := /bin/bash
# Each cargo starts as many compilers as there are cores; make cannot limit them.
ALONE := env -u MAKEFLAGS -u MFLAGS
FILES := landbridge-cli landbridge-provider landbridge-layer landbridge-layer-large

.PHONY: all command solver
all: command solver

command:
	@echo "building target/demo/landbridge: some minutes the first time"
	$(ALONE) cargo build --profile demo $(FILES:%=-p %)
	@scripts/provider-name target/demo

solver:
	@$(ALONE) $(MAKE) --no-print-directory poisson WERROR=
