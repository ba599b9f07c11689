# berth's build. The verbs:
#
#   make                 bin/berth and libexec/berth/*
#   make demo            install what is missing, build, run a workload on a real Slurm
#   make test            install what the tests need, run all of them
#   make lint            formatting, vet, golangci-lint
#   make bench           speed and memory, recorded in bench/results
#   make conformance     the official Kubernetes suite, FOCUS=... selects
#   make install         to PREFIX (default /usr/local)
#   make dist            a tarball for any Linux
#   make clean
#
# One set of build flags everywhere: a different one would compile all of
# Kubernetes again.

PREFIX  ?= /usr/local
GOARCH  ?= $(shell go env GOARCH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# A build for another machine goes to a place of its own.
OUT     ?= $(if $(filter $(shell go env GOHOSTARCH),$(GOARCH)),$(CURDIR),$(CURDIR)/dist/$(GOARCH))
BIN     := $(OUT)/bin
LIBEXEC := $(OUT)/libexec/berth

export GOARCH
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false

KUBERNETES := $(shell go list -m -f '{{.Version}}' k8s.io/kubernetes)
kube_version := k8s.io/component-base/version
kube_ldflags := -X $(kube_version).gitVersion=$(KUBERNETES) -X $(kube_version).gitMajor=1 \
	-X $(kube_version).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))) -X $(kube_version).gitTreeState=clean
berth_ldflags := -X berth.dev/berth/internal/cluster.version=$(VERSION)

.PHONY: all berth kube runtime programs deps demo test bench conformance lint install dist clean
# Linking takes a gigabyte; one after the other.
.NOTPARALLEL:

all: berth kube runtime programs

berth:
	go build -ldflags "-s -w $(berth_ldflags)" -o $(BIN)/berth ./cmd/berth

kube:
	@echo "building Kubernetes; the first time takes about five minutes on two cores"
	go build -ldflags "-s -w $(kube_ldflags)" -o $(LIBEXEC)/berth-kube ./cmd/berth-kube

runtime:
	$(MAKE) -C runtime OUT=$(LIBEXEC) GOARCH=$(GOARCH)

programs:
	$(MAKE) -C programs OUT=$(LIBEXEC) GOARCH=$(GOARCH)

demo:
	scripts/install-deps build bed
	$(MAKE) all
	$(MAKE) -C test/images
	scripts/demo

test:
	scripts/install-deps build bed test
	scripts/test

bench:
	scripts/install-deps build test
	$(MAKE) all
	$(MAKE) -C test/images
	bench/run

conformance:
	$(MAKE) -C test/conformance
	scripts/conformance "$(FOCUS)"

lint:
	scripts/lint

install: all
	mkdir -p $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec
	install -m 755 $(BIN)/berth $(DESTDIR)$(PREFIX)/bin/berth
	rm -rf $(DESTDIR)$(PREFIX)/libexec/berth
	cp -r $(LIBEXEC) $(DESTDIR)$(PREFIX)/libexec/berth

dist: all
	scripts/dist $(OUT) $(VERSION) $(GOARCH)

clean:
	rm -rf bin libexec dist build
