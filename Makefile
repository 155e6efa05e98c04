# Every target is one command of the lab; `make help` lists those that exist.
# A target whose script is not there yet says so and fails.
.DEFAULT_GOAL := help
.PHONY: help demo test check unit fuzz tsan lab bench dkms test-debug clean

need = @test -e $(1) || { echo "make $@: $(1) is not there yet" >&2; exit 1; }

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: ## two VMs, unmodified programs, TCP beside Hallway: one table
	$(call need,lab/demo)
	lab/run setup
	lab/demo

test: ## everything: unit, model, module and end-to-end tests on both kernels
	$(call need,tests/run)
	lab/run setup
	tests/run all

test-debug: ## module and end-to-end tests on a kernel with KASAN and lockdep
	$(call need,tests/run)
	lab/run setup
	lab/run kernel debug
	tests/run debug

check: ## formatters, linters, the include rule
	$(call need,tests/check)
	lab/run setup
	tests/check

unit: ## ring and state machine in user space, with sanitizers
	$(call need,tests/run)
	tests/run unit

fuzz: ## a short fuzzing run against a hostile peer
	$(call need,tests/run)
	tests/run fuzz

tsan: ## the ring under ThreadSanitizer
	$(call need,tests/run)
	tests/run tsan

lab: ## two VMs and a shell in each, to try programs of your own
	lab/run setup
	lab/run lab

bench: ## the benchmarks, with plots
	$(call need,bench/run)
	lab/run setup
	bench/run

dkms: ## the module for this kernel and each to come (in a guest, with DKMS)
	kmod/dkms-install

clean: ## remove what was built in the checkout (the cache stays)
	rm -rf out host/target
