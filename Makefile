# SPDX-License-Identifier: Apache-2.0 OR MIT
# Every target is one command or two; `make help` lists them.
.DEFAULT_GOAL := help
# What `make test-all` runs.
PARTS = test test-slow test-debug test-suites test-programs test-faults test-xen test-xen-debug test-xen-slow mutants
.PHONY: help demo recording test test-all test-slow test-debug test-programs test-suites test-faults
.PHONY: test-xen test-xen-debug test-xen-slow demo-xen check generate unit fuzz tsan mutants lab bench bench-check bench-results results dkms clean
.PHONY: deb rpm install install-host install-guest install-library
# Where `make install` installs to.
PREFIX ?= /usr/local
BIN := $(DESTDIR)$(PREFIX)/bin
SBIN := $(DESTDIR)$(PREFIX)/sbin
SHARE := $(DESTDIR)$(PREFIX)/share
LIBDIR ?= $(PREFIX)/lib
PYTHONDIR ?= $(shell python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"$$/\1/p' kmod/dkms.conf)
# `hallway`, with its manual pages and completions.
define install-cli
	cargo run -q --release --locked --manifest-path host/Cargo.toml -p hallway-cli --example manual out/manual
	install -D -m 755 -t $(BIN) host/target/release/hallway
	install -D -m 644 -t $(SHARE)/man/man1 out/manual/*.1
	install -D -m 644 out/manual/hallway.bash $(SHARE)/bash-completion/completions/hallway
	install -D -m 644 -t $(SHARE)/zsh/vendor-completions out/manual/_hallway
	install -D -m 644 -t $(SHARE)/fish/vendor_completions.d out/manual/hallway.fish
endef
# libhallway, and what programs in C and Python need of it.
define install-library
	$(if $(PYTHONDIR),,$(error python3 says where its modules are to go: install it, or name the folder by PYTHONDIR=))
	cargo build -q --release --locked --manifest-path host/Cargo.toml -p hallway-capi
	install -D -m 644 host/target/release/libhallway.so $(DESTDIR)$(LIBDIR)/libhallway.so.0
	ln -sf libhallway.so.0 $(DESTDIR)$(LIBDIR)/libhallway.so
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include host/crates/capi/include/hallway.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		host/crates/capi/hallway.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/hallway.pc
	install -D -m 644 -t $(DESTDIR)$(PYTHONDIR)/hallway host/python/hallway/__init__.py host/python/hallway/py.typed
	[ -n "$(DESTDIR)" ] || ldconfig
endef
# The documents of a package, and what they lead to.
define install-docs
	install -D -m 644 -t $(SHARE)/doc/$(1)/docs docs/*.md
	grep -oh '](\.\./[^)#]*' docs/*.md | cut -c 6- | sort -u | xargs cp -r --parents -t $(SHARE)/doc/$(1)
endef

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: ## two VMs, unmodified programs, TCP beside Hallway: one table, and what bounds each row
	lab/run setup
	demo/run

recording: ## the demo as an asciicast, in out/demo.cast; ROWS=WORD: those rows
	lab/run setup
	mkdir -p out
	demo/record out/demo.cast $(if $(ROWS),-k $(ROWS))

demo-xen: ## the demo between two domains of Xen
	lab/run setup
	demo/run --xen

# Domains share one emulated machine, which no worker beside may keep from its CPUs.
test: ## unit, module and end-to-end tests on both kernels, and some between domains of Xen
	lab/run setup
	tests/run -n 4 -m "not slow"
	tests/run --xen pv --kernel 6.1 -m "not slow" -k "promotion_v6 or checkpointed" e2e xen

test-all: ## every test there is (hours); says how long each part takes
	@for part in $(PARTS); do \
		begin=$$(date +%s); code=0; $(MAKE) $$part || code=$$?; \
		took="$$took$$part: $$((($$(date +%s) - begin) / 60)) min, exit code $$code\n"; \
		[ $$code = 0 ] || failed=1; \
	done; printf "$$took"; [ -z "$$failed" ]

test-slow: ## what `make test` leaves out of its suites
	lab/run setup
	tests/run -n 4 -m slow || [ $$? = 5 ]

# The guests of one group take two CPUs: with fewer, grace periods of RCU take minutes there.
test-debug: ## module and end-to-end tests on a kernel with KASAN and lockdep
	lab/run setup
	tests/run -n $$((($$(nproc) + 1) / 2)) --kernel debug module e2e

check: ## formatters, linters, the include rule
	lab/run setup
	tests/check

generate: ## write the files that spec/*.yaml and the tests are the source of
	spec/generate
	cd tests && PYTHONPATH=../lab python3 -B -m lint.compatibility

unit: ## ring and state machine in user space, with sanitizers
	$(MAKE) -s -C tests/ring unit

fuzz: ## a short fuzzing run against a hostile peer
	$(MAKE) -s -C tests/ring fuzz

tsan: ## the ring under ThreadSanitizer
	$(MAKE) -s -C tests/ring tsan

mutants: ## break ring, channel and module on purpose: every fault is noticed
	tests/ring/mutants && tests/module/mutants

test-programs: ## programs of other projects, on rings and while carriers switch (an hour)
	lab/run setup
	tests/run -n 2 programs --kernel 6.1

test-suites: ## test suites of other projects, over rings and over TCP (hours)
	lab/run setup
	tests/run -n 2 suites --kernel 6.1

test-faults: ## VMs that join, leave, crash and migrate under load (hours)
	lab/run setup
	tests/run -n 2 faults

test-xen: ## domains of Xen, in one emulated machine (25 minutes)
	lab/run setup
	tests/run --xen pv --kernel 6.1 -m "not slow" e2e xen

test-xen-debug: ## the tests of this transport, in domains with lockdep
	lab/run setup
	tests/run --xen pv --kernel debug-domain -m "not slow" xen

test-xen-slow: ## domains saved and migrated twenty times, and programs between them (hours)
	lab/run setup
	tests/run --xen pv --kernel 6.1 -m slow e2e xen programs

lab: ## two VMs and a shell in each, to try programs of your own
	lab/run setup
	lab/run lab

bench: ## the benchmarks, with plots in out/benchmarks; FIG=WORD: those of one kind, such as outsource, growth, papers, tunnel, xen, native, instructions
	lab/run setup
	bench/run $(if $(FIG),-k $(FIG))

bench-check: ## count the guest's instructions per call: none has become 3 % more
	lab/run setup
	bench/run --check

results: ## docs/results.md, from the records of this revision in out/results
	lab/run results

bench-results: ## docs/benchmarks: a page, all samples and plots, from the records of `make bench`
	bench/run --publish

dkms: ## the module for this kernel and each to come (in a guest, with DKMS)
	kmod/dkms-install

install: install-host ## hallwayd, its tools and unit on this host (PREFIX=/usr/local)

install-host: ## the same, alone
	cargo build --release --locked --manifest-path host/Cargo.toml
	install -d $(DESTDIR)/etc/hallway/hallwayd.d
	$(install-cli)
	$(install-library)
	cargo run -q --release --locked --manifest-path host/Cargo.toml -p hallway-daemon --example manpage out/manual
	install -D -m 644 -t $(SHARE)/man/man8 out/manual/hallwayd.8
	install -D -m 644 -t $(SHARE)/man/man5 out/manual/hallwayd.toml.5
	install -D -m 755 -t $(SBIN) $(addprefix host/target/release/hallway, d -host -libvirt -outsource)
	[ -e $(DESTDIR)/etc/hallway/hallwayd.toml ] || { \
		install -D -m 644 host/packaged.toml $(DESTDIR)/etc/hallway/hallwayd.toml && \
		sed -i 's|/usr/local|$(PREFIX)|' $(DESTDIR)/etc/hallway/hallwayd.toml; \
	}
	install -D -m 644 -t $(SHARE)/doc/hallway-host \
		host/hallwayd.toml packaging/grafana.json \
		$(addprefix host/systemd/,outsource.conf weight.conf xen.conf)
	$(call install-docs,hallway-host)
	install -D -m 644 -t $(DESTDIR)/lib/systemd/system \
		$(addprefix host/systemd/,hallwayd.service hallway-metrics.service)
	install -D -m 644 host/systemd/tmpfiles.conf $(DESTDIR)/usr/lib/tmpfiles.d/hallway.conf
	sed -i 's|/usr/local|$(PREFIX)|' $(SHARE)/doc/hallway-host/xen.conf \
		$(addprefix $(DESTDIR)/lib/systemd/system/,hallwayd.service hallway-metrics.service)

install-guest: ## in a guest: module's source for DKMS, hallway, and the library
	$(install-cli)
	$(install-library)
	install -D -m 644 kmod/modprobe.conf $(DESTDIR)/lib/modprobe.d/hallway.conf
	$(call install-docs,hallway-guest)
	install -D -m 644 -t $(DESTDIR)/lib/systemd/system host/systemd/hallway-metrics-guest.service
	sed -i 's|/usr/local|$(PREFIX)|' $(DESTDIR)/lib/systemd/system/hallway-metrics-guest.service
	SOURCES=$(DESTDIR)/usr/src kmod/dkms-install --lay-out

install-library: ## the library for programs in C and Python, alone
	$(install-library)

deb: ## packages for Debian, in out/deb: hallway-host, and hallway-guest for DKMS
	mkdir -p out/deb
	debian/rules clean binary

# Debian has the tool, and no database of what rpm installed.
rpm: ## packages for distributions with rpm, in out/rpm: the same two
	rpmbuild -bb --quiet --build-in-place $(if $(wildcard /etc/debian_version),--nodeps) \
		-D '_topdir $(CURDIR)/out/rpmbuild' -D '_rpmdir $(CURDIR)/out/rpm' \
		-D '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' packaging/hallway.spec

clean: ## remove what was built in the checkout (the cache stays)
	rm -rf out host/target
