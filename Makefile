# berth's build. The verbs:
#
#   make                 bin/berth and libexec/berth/*
#   make demo            install what is missing, build, run a workload on a real Slurm:
#                        about ten minutes on two cores the first time
#   make test            install what the tests need, run all of them
#   make test STORY=job  one story of test/stories/testdata, with what is built
#   make test CASE=kill_janitor   one case or group of test/ends, with what is built
#   make fuzz TIME=30s   every fuzz target for this time, or only TARGET=...
#   make chaos ROUNDS=20 SEED=1 PROCTRACK=cgroup   breaks one thing in each of so many runs, or with
#                        FAULTS=10 up to ten, one after the other, in a run that heals
#   make linearizable ROUNDS=10 SEED=1   whether writes of the API are lost with --ha, one fault in each run
#   make objects OBJECTS=200 KILLS=100 SEED=1   whether the controller of SlurmJobs, killed so often, loses or repeats one
#   make site-cases      every case of the site network on a real Slurm; RESULTS=FILE keeps the results
#   make soak            1,000 runs, 20,000 pods and 2,000 jobs in a row, which takes hours: nothing may grow
#   make lint            formatting, vet, golangci-lint
#   make bench           speed and memory, recorded in bench/results
#   make bench-network   the part for pods' connections, bare metal and other networks: 25 minutes
#   make bench-bed       every case on every system, links and tuning profiles, and the site network: an hour and a half
#   make bench-images    how images come to nodes, beside Apptainer and stargz-snapshotter: 40 minutes
#   make reports         pages with charts of the recorded runs, docs/bench/*/report.html
#   make conformance     the official Kubernetes suite on three nodes, FOCUS=... selects
#   make site            berthd and the SPANK plugin, in build/GOARCH/site
#   make spank           only the plugin, for the Slurm below SLURM_PREFIX
#   make site-packages   a deb and an rpm of the site network
#   make install         to PREFIX (default /usr/local)
#   make dist            a tarball for any Linux; make sources for its licences
#   make packages        a deb and an rpm
#   make clean
#
# One set of build flags everywhere: a different one would compile all of
# Kubernetes again.

PREFIX  ?= /usr/local
GOARCH  ?= $(shell go env GOARCH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# A build for another architecture has a separate folder.
OUT     ?= $(if $(filter $(shell go env GOHOSTARCH),$(GOARCH)),$(CURDIR),$(CURDIR)/dist/$(GOARCH))
BIN     := $(OUT)/bin
LIBEXEC := $(OUT)/libexec/berth
# Files that are neither shipped nor kept in git.
BUILD   := $(CURDIR)/build/$(GOARCH)

export GOARCH
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false

KUBERNETES := $(shell go list -m -f '{{.Version}}' k8s.io/kubernetes)
kube_version := k8s.io/component-base/version
kube_ldflags := -X $(kube_version).gitVersion=$(KUBERNETES) -X $(kube_version).gitMajor=1 \
	-X $(kube_version).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))) -X $(kube_version).gitTreeState=clean \
	-X $(kube_version).gitCommit= -X $(kube_version).buildDate=2026-07-22T18:07:38Z
berth_ldflags := -X berth.dev/berth/internal/base/cluster.version=$(VERSION)

.PHONY: all berth berth-bench kube runtime programs site spank site-packages deps demo test fuzz chaos linearizable objects site-cases soak bench bench-network bench-bed bench-images reports conformance lint notices install dist packages sources clean
# Linking takes a gigabyte of memory, so link one program after the other.
.NOTPARALLEL:

all: berth berth-bench kube runtime programs

berth:
	go build -ldflags "-s -w $(berth_ldflags)" -o $(BIN)/berth ./cmd/berth
	install -m 755 packaging/run-workload.sh $(BIN)/run-workload.sh

	go build -ldflags "-s -w" -o $(LIBEXEC)/berth-sandbox ./cmd/berth-sandbox
	go build -ldflags "-s -w" -o $(LIBEXEC)/berth-runc ./cmd/berth-runc
	@# berth writes a Corefile with plugins that only this CoreDNS has.
	$(MAKE) -s -C programs coredns OUT=$(LIBEXEC) GOARCH=$(GOARCH)

# The program that 'berth bench' starts; a separate module.
berth-bench:
	go build -C bench -ldflags "-s -w" -o $(LIBEXEC)/berth-bench .

kube:
	@echo "building Kubernetes; of the first build, which takes about ten minutes on two cores, most is this"
	go build -ldflags "-s -w $(kube_ldflags)" -o $(LIBEXEC)/berth-kube ./cmd/berth-kube
	ln -sfn berth-kube $(LIBEXEC)/kubectl

runtime:
	$(MAKE) -C runtime OUT=$(LIBEXEC) GOARCH=$(GOARCH)

programs:
	$(MAKE) -C programs OUT=$(LIBEXEC) GOARCH=$(GOARCH)

# The site network is for administrators; nothing else needs it. The plugin fits
# the Slurm whose headers are below SLURM_PREFIX, and no other version.
site:
	go build -ldflags "-s -w $(berth_ldflags)" -o $(BUILD)/site/berthd ./cmd/berthd
	cd programs/coredns && go build -ldflags "-s -w" -o $(BUILD)/site/berth-dns ./site
	$(MAKE) -C spank OUT=$(BUILD)/site

spank:
	$(MAKE) -C spank OUT=$(BUILD)/site

site-packages: site
	cd scripts/notices && GOARCH= go run . -version "$(VERSION)" -out $(BUILD)/site-notices $(BUILD)/site/berthd $(BUILD)/site/berth-dns
	scripts/package $(OUT) $(VERSION) $(GOARCH) site

# Builds only what the demo runs: no helm, no bench, one image.
demo:
	scripts/install-deps build bed
	@echo "1/4 berth";                                    $(MAKE) -s berth
	@echo "2/4 Kubernetes, most of the first build";      $(MAKE) -s kube
	@echo "3/4 containerd and runc";                      $(MAKE) -s runtime
	@echo "4/4 nft, CoreDNS and an image";                $(MAKE) -s -C programs nft coredns OUT=$(LIBEXEC)
	@$(MAKE) -s -C test/images out/busybox.tar
	scripts/demo

test:
	scripts/install-deps build bed test fuzz
	scripts/test $(if $(STORY),story $(STORY)) $(if $(CASE),case $(CASE))

TIME ?= 30s
fuzz:
	scripts/install-deps build fuzz
	scripts/fuzz -t $(TIME) $(TARGET)

ROUNDS ?= 20
SEED ?= 1
PROCTRACK ?= cgroup
chaos:
	scripts/install-deps build bed
	test/chaos/run -n $(ROUNDS) -s $(SEED) -t $(PROCTRACK) $(addprefix -c ,$(FAULTS))

linearizable:
	scripts/install-deps build bed
	test/linearizable/run -n $(ROUNDS) -s $(SEED)

OBJECTS ?= 200
KILLS ?= 100
objects:
	scripts/install-deps build bed
	test/objects/run -j $(OBJECTS) -k $(KILLS) -s $(SEED)

site-cases:
	scripts/install-deps build bed
	$(MAKE) all
	$(MAKE) -C test/images out/busybox.tar
	test/site/run -a $(if $(RESULTS),-r $(RESULTS))

RUNS ?= 1000
PODS ?= 20000
JOBS ?= 2000
soak:
	scripts/install-deps build bed test
	test/soak/run -r $(RUNS) -p $(PODS) -j $(JOBS)

bench: bench-network
	scripts/install-deps test
	$(MAKE) -C test/images all bench
	test/yardstick/run

bench-network:
	scripts/install-deps build bed bench
	$(MAKE) all
	$(MAKE) -C test/images bench
	$(MAKE) -C test/bench out/bypass4netns
	test/bench/network

bench-bed:
	scripts/install-deps build bed bench
	$(MAKE) all
	$(MAKE) -C test/images bench hpc
	$(MAKE) -C test/bench out/bypass4netns flannel calico
	test -e test/bench/out/apptainer/VERSIONS || test/bench/apptainer test/bench/out/apptainer /srv/berth/test/bench/out/apptainer
	test/bench/bed
	PLAN=cni-bed test/bench/network
	test/bench/pcocc

bench-images:
	scripts/install-deps build bed
	$(MAKE) all
	$(MAKE) -C test/images bench paper
	$(MAKE) -C test/bench stargz
	test -e test/bench/out/apptainer/VERSIONS || test/bench/apptainer test/bench/out/apptainer /srv/berth/test/bench/out/apptainer
	test/bench/images

# A report is a function of its records, so git has only the Markdown.
reports:
	for run in docs/bench/*/; do \
		(cd bench && GOARCH= go run . report ../$${run}records.jsonl.zst --out ../$$run) && rm $${run}figures.csv || exit; \
	done

conformance:
	scripts/install-deps build bed
	$(MAKE) all
	$(MAKE) -C test/conformance all more-images
	scripts/conformance $(if $(FOCUS),"$(FOCUS)")

lint:
	scripts/lint --all

# The licences of everything that is shipped, and a bill of materials.
notices:
	cd scripts/notices && GOARCH= go run . -version "$(VERSION)" -out $(BUILD)/notices \
		-debian libexec/berth/nft=$(BUILD)/nft/licences -debian libexec/berth/runc=$(BUILD)/runc/licences \
		$(OUT)/bin $(OUT)/libexec

install: all notices
	mkdir -p $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec $(DESTDIR)$(PREFIX)/share/doc/berth $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 LICENSE $(BUILD)/notices/* $(DESTDIR)$(PREFIX)/share/doc/berth/
	install -m 644 packaging/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 755 $(BIN)/berth $(BIN)/run-workload.sh $(DESTDIR)$(PREFIX)/bin/
	rm -rf $(DESTDIR)$(PREFIX)/libexec/berth
	cp -r $(LIBEXEC) $(DESTDIR)$(PREFIX)/libexec/berth

dist: all notices reports
	scripts/dist $(OUT) $(VERSION) $(GOARCH)

packages: all notices
	scripts/package $(OUT) $(VERSION) $(GOARCH)

# The source packages of everything that is linked from Debian packages. Their
# licences require whoever distributes the archive to offer them too.
sources:
	mkdir -p dist/berth-$(VERSION)-sources
	sort -u $(BUILD)/nft/licences/VERSIONS $(BUILD)/runc/licences/VERSIONS | awk '{ print $$1 "=" $$2 }' | \
		xargs scripts/debroot -S dist/berth-$(VERSION)-sources

clean:
	rm -rf bin libexec dist build
