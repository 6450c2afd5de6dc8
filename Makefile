# The targets for developers and CI. .ci/run runs some of them, and prints how long each took.
#
# build, run and clean need only Go. The other targets build their tools once from
# pinned Go modules (tools/*/go.mod) into bin/. If they run as root and apt is
# available, they also install missing Debian packages.
MAKEFLAGS += --warn-undefined-variables
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# Replace characters that are valid in git tags but not in image tags or file names.
VERSION := $(shell { git describe --tags --always --dirty 2>/dev/null || echo devel; } | tr -c 'A-Za-z0-9._\n-' -)
REVISION := $(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
# The time of all files in images and packages is the time of the commit.
EPOCH := $(shell git log -1 --no-show-signature --format=%ct 2>/dev/null || echo 0)

# Set these variables on the command line: make image IMAGE=registry.example/ipwitness:1.
# Environment variables with the same names are ignored.

# The name of the image, and the architectures of the images and the packages. The name of the
# agent's image ends with -agent before the tag.
IMAGE := ghcr.io/ipwitness/ipwitness:$(VERSION)
AGENT_IMAGE = $(shell echo '$(IMAGE)' | sed -E 's/(:[^:/]*)?$$/-agent\1/')
ARCHES := amd64 arm64
# The systems other than Linux that have the kubectl plugin, as OS-ARCH.
PLUGINS := darwin-amd64 darwin-arm64

# What builds a release, for its provenance: CI sets it to the URI of its run.
BUILDER := https://github.com/ipwitness/ipwitness/blob/main/docs/release.md\#provenance

# More arguments for the program, as in: make run ARGS='--wire off'
ARGS :=
# More arguments for go test, as in: make test TESTFLAGS='-run Duplicate'
TESTFLAGS :=
# The packages that make test always tests again, as root: what their tests touch is unknown to go test
# (the kernel, files that other programs read).
UNCACHED := ./tests ./bpf ./agent/... ./tests/chart ./tests/containerd ./tests/netlab ./tests/prometheus
# The packages that only make test-all tests: they need a cluster, or servers that are built. It also tests
# tests/web, which needs a browser, and is a module of its own because only it needs a client of one.
SLOW := ./tests/kubernetes ./tests/stream
# The packages that make test-cluster tests.
CLUSTER_PKGS := ./aggregator/kube ./tests/kubernetes
# For make mutate: the package to change, the number of changes, the random seed
# (0: a new one each time), the files to change, and the percentage of changes that the
# package's own tests must detect.
PACKAGE := ./aggregator/verdict
N := 40
SEED := 0
FILES := .
WANT := 90

# An enclosing Go workspace would not include tools/*.
export GOWORK := off

# Debian has tc and other programs here, and only root has these directories in PATH.
export PATH := $(PATH):/usr/sbin:/sbin

# The version is fixed because other versions of clang produce different bytes in bpf/*.o.
export BPF2GO_CC := clang-19
export BPF2GO_STRIP := llvm-strip-19
export BPF2GO_CFLAGS := -O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/$(shell uname -m)-linux-gnu
CLANG_FORMAT := clang-format-19

# The directories in which tests, demo and benchmarks find the real CNI plugins, a
# containerd newer than Debian's, and Kubernetes.
export IPWITNESS_CNI_BIN := $(CURDIR)/bin/cni
export IPWITNESS_CONTAINERD_BIN := $(CURDIR)/bin/containerd
export IPWITNESS_KUBERNETES_BIN := $(CURDIR)/bin/kubernetes

BUF := bin/tools/buf
GOLANGCI := bin/tools/golangci-lint
IMAGE_TOOL := bin/tools/image
RELEASE_TOOL := bin/tools/release
SBOM_TOOL := bin/tools/cyclonedx-gomod
PROTOC_PLUGINS := $(addprefix bin/tools/protoc-gen-,go go-grpc grpc-gateway openapiv2)
CNI_PLUGINS := $(addprefix bin/cni/,bridge cnitool dhcp host-local loopback macvlan ptp)
OTELCOL := bin/otelcol/otelcol
NATS := bin/nats/nats-server
AWS_VPC := $(addprefix bin/awsvpc/,aws-cni ipamd)
KUBERNETES := $(addprefix bin/kubernetes/,kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet)
ETCD := bin/kubernetes/etcd
CALICO_CRDS := bin/kubernetes/calico-crds
OPERATOR_CRDS := bin/kubernetes/operator-crds
HELM := bin/kubernetes/helm
CONTAINERD := $(addprefix bin/containerd/,containerd containerd-shim-runc-v2 ctr)

C_FILES := $(wildcard bpf/*.c bpf/*.h)

comma := ,
space := $(subst ,, )

# Required commands or files, each with the Debian package that contains it.
TEST_NEEDS := gcc:gcc /usr/include/stdlib.h:libc6-dev ip:iproute2 \
	containerd:containerd ctr:containerd runc:runc dockerd:docker.io podman:podman /usr/lib/podman/netavark:netavark \
	/bin/busybox:busybox-static conntrack:conntrack dnsmasq:dnsmasq-base kea-dhcp4:kea-dhcp4-server \
	/lib/systemd/systemd:systemd openssl:openssl promtool:prometheus curl:curl /usr/sbin/ovs-vswitchd:openvswitch-switch \
	/usr/sbin/keepalived:keepalived setsid:util-linux python3:python3 \
	/usr/share/bash-completion/bash_completion:bash-completion fish:fish tmux:tmux tcpdump:tcpdump
# For slow tests, in addition.
SLOW_NEEDS := prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager runsc:runsc buildah:buildah \
	ovn-northd:ovn-central ovn-controller:ovn-host /usr/lib/frr/vrrpd:frr
DEMO_NEEDS := ip:iproute2 unshare:util-linux nsenter:util-linux awk:mawk
PICTURES_NEEDS := chromium:chromium
WEB_NEEDS := node:nodejs npm:npm
KERNELS_NEEDS := qemu-system-x86_64:qemu-system-x86 busybox:busybox-static xz:xz-utils \
	ip:iproute2 ldd:libc-bin
BENCH_NEEDS := tcpdump:tcpdump arpwatch:arpwatch
FORMAT_NEEDS := $(CLANG_FORMAT):clang-format-19
BPF_NEEDS := $(BPF2GO_CC):clang-19 $(BPF2GO_STRIP):llvm-19 \
	/usr/include/bpf/bpf_helpers.h:libbpf-dev /usr/include/linux/bpf.h:linux-libc-dev

# The prefix of commands that must run as root: empty for root, sudo for other users.
# go test builds as the caller, and only the test programs run as root.
AS_ROOT = $(if $(NEED_SUDO),sudo -E env "PATH=$$PATH")
EXEC_AS_ROOT = $(if $(NEED_SUDO),-exec "sudo -E env 'PATH=$$PATH'")
NEED_SUDO = $(if $(filter 0,$(shell id -u)),,$(or $(shell type -P sudo || true),\
	$(error make $(MAKECMDGOALS) needs root (network namespaces, BPF), and there is no sudo: run it as root)))

##@ Use

.PHONY: help
help: ## Show this help
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## Build bin/ipwitness and bin/ipwitness-agent, static binaries; needs only Go
	$(GO_BUILD) -o bin/ $(PROGRAMS)

# The Dockerfile contains the same command. It links the commit explicitly instead of
# using Go's VCS stamping, so that the same sources result in the same bytes.
# Without grpcnotrace, gRPC links html/template, which keeps the linker from dropping methods
# that nobody calls.
CLI := github.com/ipwitness/ipwitness/cmd/cli
GO_BUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags grpcnotrace \
	-ldflags "-s -w -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(REVISION)"
PROGRAMS := ./cmd/ipwitness ./cmd/ipwitness-agent

# For a release: bin/release/ARCH/build/out has the same contents as /out in the build
# stage of the Dockerfile.
.PHONY: release-binaries
release-binaries:
	@for a in $(ARCHES); do \
		export GOOS=linux GOARCH=$$a GOAMD64=v1 GOARM64=v8.0; out=bin/release/$$a/build/out; \
		mkdir -p $$out; \
		$(GO_BUILD) -o $$out/ $(PROGRAMS); \
		deploy/licenses.sh >$$out/THIRD-PARTY-LICENSES; \
	done

.PHONY: image
image: $(IMAGE_TOOL) release-binaries ## Build bin/ipwitness-image.tar and bin/ipwitness-agent-image.tar, OCI archives, without a container engine
	$(BUILD_IMAGE) -program ipwitness -name $(IMAGE) -o bin/ipwitness-image.tar
	$(BUILD_IMAGE) -program ipwitness-agent -name $(AGENT_IMAGE) -o bin/ipwitness-agent-image.tar

BUILD_IMAGE = $(IMAGE_TOOL) -binaries bin/release -arch $(subst $(space),$(comma),$(strip $(ARCHES))) \
	-version $(VERSION) -revision $(REVISION) -epoch $(EPOCH)

.PHONY: package
package: release-binaries ## Build bin/ipwitness-VERSION-linux-ARCH.tar.gz, for Linux without Kubernetes
	@rm -f bin/ipwitness-*-linux-*.tar.gz
	@for a in $(ARCHES); do \
		name=ipwitness-$(VERSION)-linux-$$a; dir=bin/release/$$a/package; to=$$dir/$$name/usr/local; \
		rm -rf $$dir; \
		install -D -m 755 -t $$to/bin bin/release/$$a/build/out/ipwitness bin/release/$$a/build/out/ipwitness-agent; \
		install -D -m 644 -t $$to/lib/systemd/system deploy/systemd/*.service; \
		install -D -m 644 deploy/systemd/sysusers.conf $$to/lib/sysusers.d/ipwitness.conf; \
		install -D -m 644 -t $$to/share/doc/ipwitness LICENSE bpf/LICENSE.* \
			bin/release/$$a/build/out/THIRD-PARTY-LICENSES docs/install-linux.md deploy/systemd/*.yaml; \
		install -D -m 755 -t $$to/share/doc/ipwitness deploy/kubectl/kubectl_complete-ipwitness; \
		$(PACK); \
	done

# Pack the directory $$dir/$$name into bin/$$name.tar.gz.
PACK = (cd $$dir && find $$name -type f | LC_ALL=C sort | tar --files-from=- --create --format=ustar \
	--mtime=@$(EPOCH) --owner=0 --group=0 --numeric-owner) | gzip -9n >bin/$$name.tar.gz; \
	ls -s --human-readable bin/$$name.tar.gz

.PHONY: plugins
plugins: ## Build bin/ipwitness-VERSION-OS-ARCH.tar.gz, the kubectl plugin for macOS: the commands that query
	@rm -f bin/ipwitness-*-darwin-*.tar.gz
	@for system in $(PLUGINS); do \
		export GOOS=$${system%-*} GOARCH=$${system#*-} GOAMD64=v1 GOARM64=v8.0; \
		name=ipwitness-$(VERSION)-$$system; dir=bin/release/$$system; \
		rm -rf $$dir; \
		$(GO_BUILD) -o $$dir/$$name/ipwitness ./cmd/ipwitness; \
		deploy/licenses.sh >$$dir/$$name/THIRD-PARTY-LICENSES; \
		install -m 644 -t $$dir/$$name LICENSE; \
		install -m 755 -t $$dir/$$name deploy/kubectl/kubectl_complete-ipwitness; \
		$(PACK); \
	done

# The chart needs a semantic version: that of the tag, or one that is older than every release.
CHART_VERSION := $(shell echo '$(VERSION)' | sed -E '/^v[0-9]+\.[0-9]+\.[0-9]+(-[A-Za-z0-9.-]+)?$$/!{s/[^A-Za-z0-9-]/-/g;s/^/v0.0.0-g/};s/^v//')
DIST := bin/release/dist
.PHONY: release
release: image package plugins $(HELM) $(RELEASE_TOOL) $(SBOM_TOOL) ## Build all files of a release into bin/release/dist: image, packages, chart, SBOM, krew manifest, provenance, checksums
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@cp bin/ipwitness-$(VERSION)-linux-*.tar.gz $(PLUGINS:%=bin/ipwitness-$(VERSION)-%.tar.gz) $(DIST)/
	@cp bin/ipwitness-image.tar $(DIST)/ipwitness-$(VERSION)-image.tar
	@cp bin/ipwitness-agent-image.tar $(DIST)/ipwitness-agent-$(VERSION)-image.tar
	@for a in $(ARCHES); do \
		$(SBOM_TOOL) bin -json -std -noserial -notimestamp -version $(VERSION) \
			-output $(DIST)/ipwitness-$(VERSION)-linux-$$a.cdx.json bin/release/$$a/build/out/ipwitness; \
		$(SBOM_TOOL) bin -json -std -noserial -notimestamp -version $(VERSION) \
			-output $(DIST)/ipwitness-agent-$(VERSION)-linux-$$a.cdx.json bin/release/$$a/build/out/ipwitness-agent; \
	done
	@for system in $(PLUGINS); do \
		$(SBOM_TOOL) bin -json -std -noserial -notimestamp -version $(VERSION) \
			-output $(DIST)/ipwitness-$(VERSION)-$$system.cdx.json bin/release/$$system/ipwitness-$(VERSION)-$$system/ipwitness; \
	done
	@$(HELM) package deploy/helm/ipwitness --version $(CHART_VERSION) --app-version $(VERSION) --destination $(DIST) >/dev/null
	@$(RELEASE_TOOL) -dir $(DIST) -version $(VERSION) -revision $(REVISION) -go $$(go env GOVERSION) \
		-arch $(subst $(space),$(comma),$(strip $(ARCHES))) -plugins '$(subst $(space),$(comma),$(strip $(PLUGINS)))' -epoch $(EPOCH) -image $(IMAGE) -agent-image $(AGENT_IMAGE) -builder '$(BUILDER)'
	@ls -s --human-readable $(DIST)

.PHONY: as-root
as-root: # before a build that takes minutes
	@$(AS_ROOT) true

.PHONY: run
run: as-root build ## Watch this host: bin/ipwitness run $(ARGS), as root
	@$(AS_ROOT) bin/ipwitness run $(ARGS)

.PHONY: demo
demo: as-root deps-demo build cni-plugins ## Show a real IPAM accident and how ipwitness reports it; ARGS='-pace 3s'
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/demo ./tests/demo
	@$(AS_ROOT) bin/demo $(ARGS)

.PHONY: playground
playground: as-root deps-demo build cni-plugins ## Open a shell on a host of its own, to try ipwitness (docs/tutorial.md)
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/demo ./tests/demo
	@$(AS_ROOT) bin/demo -shell

##@ Check

.PHONY: check
check: lint build test ## Run the checks that must pass at every commit; .ci/run runs more

# Most tests of a host wait for timers of the program, so more tests run in parallel than
# there are processors.
GO_TEST = go test -timeout 40m -parallel 8 $(TESTFLAGS)
GO_TEST_AS_ROOT = IPWITNESS_ROOT_TESTS=1 $(GO_TEST) -count=1 $(EXEC_AS_ROOT)
# The packages that make test need not test again if nothing changed.
CACHED = $(filter-out $(shell go list $(UNCACHED) $(SLOW)),$(shell go list ./...))

.PHONY: test
test: deps-test build cni-plugins helm ## Test all packages and a host, as root, without slow tests (five minutes)
	$(GO_TEST) -short $(CACHED)
	$(GO_TEST_AS_ROOT) -short $(UNCACHED)

# The packages that start goroutines. ./tests runs the program, which is built without the detector. The
# tests that are left out judge thousands of owners, and need minutes with the detector.
RACE = $(addprefix ./,$(sort $(shell grep -rlE -e '^\s*go [a-zA-Z]' -e '\.Go\b' --include='*.go' --exclude='*_test.go' \
	agent aggregator bpf cmd | xargs -n 1 dirname)))
.PHONY: test-race
test-race: deps-test ## Test the packages that start goroutines with the race detector, as root, without slow tests
	CGO_ENABLED=1 $(GO_TEST_AS_ROOT) -race -short -skip '^(TestNoReportRunsACommand|TestSeriesAreBounded)$$' $(RACE)

.PHONY: test-page
test-page: deps-test deps-pictures web-modules build cni-plugins ## Test the web page in a browser, as root
	cd tests/web && $(GO_TEST_AS_ROOT) -run '^(TestADuplicateAppearsWithoutReloadAndResolves|TestEveryViewIsAccessibleAndKeepsThePolicy)$$' .

.PHONY: test-install
test-install: ARCHES := $(shell go env GOARCH)
test-install: deps-test build image cni-plugins kubernetes ## Install the chart in a real Kubernetes with two nodes, as root: a duplicate, its Event, an upgrade
	IPWITNESS_CLUSTER_TESTS=1 $(GO_TEST_AS_ROOT) -run '^TestHelmUpgradeWithVolume$$' ./tests/kubernetes

.PHONY: test-all
test-all: check-generate lint-tools deps-test deps-slow deps-pictures web-modules build cni-plugins aws-vpc-cni otelcol nats containerd release ## Run all tests, as root, including slow ones, the race detector, clusters, other kernels, and half an hour of faults (two hours)
	go -C tools/image test ./...
	go -C tools/release test ./...
	$(GO_TEST) $(CACHED)
	$(GO_TEST_AS_ROOT) $(UNCACHED) $(filter-out ./tests/kubernetes,$(SLOW))
	cd tests/web && $(GO_TEST_AS_ROOT) .
	CGO_ENABLED=1 $(GO_TEST_AS_ROOT) -race $(RACE)
	@$(MAKE) --no-print-directory test-cluster test-kernels model chaos

.PHONY: model
model: ## Run a minute of random histories in the aggregator and in the reference model; ARGS='-seed 7 -steps 1000000'
	GODEBUG=madvdontneed=0 go test -count=1 -timeout 0 -v -run '^TestRandomHistories$$' ./tests/model -args $(or $(ARGS),-seed 0 -steps 0 -for 1m)

.PHONY: crash
crash: deps-test build ## Kill an aggregator 100 times under load and compare its history with what happened; ARGS='-kills 20'
	IPWITNESS_ROOT_TESTS=1 go test -count=1 -timeout 1h -v $(EXEC_AS_ROOT) -run '^TestTheHistoryOutlivesSIGKILLUnderLoad$$' ./tests -args $(or $(ARGS),-kills 100)

# How long make chaos takes, in make test-all, too.
CHAOS := 30m
.PHONY: chaos
chaos: deps-test build nats ## Kill, pause, cut off and starve two replicas under load, and check what they say; CHAOS=5m ARGS='-replicas 3 -rate 5000'
	IPWITNESS_ROOT_TESTS=1 go test -count=1 -timeout 2h -v $(EXEC_AS_ROOT) -run '^TestReplicasUnderFaultsAndLoad$$' ./tests -args -for $(CHAOS) $(or $(ARGS),-replicas 2 -rate 5000)

.PHONY: test-cluster
test-cluster: deps-test build image cni-plugins kubernetes ## Run the tests on a real Kubernetes with two nodes, as root; the first run builds it (minutes)
	IPWITNESS_CLUSTER_TESTS=1 CGO_ENABLED=1 go test -race -count=1 -timeout 1h -p 1 \
		$(EXEC_AS_ROOT) $(TESTFLAGS) $(CLUSTER_PKGS)

.PHONY: test-kernels
test-kernels: deps-kernels build cni-plugins ## Boot Linux 6.1 and 6.12 in qemu and run tests there; ARGS='-kernel 6.12 -run VLAN'
	@CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o bin/kernels/ ./bpf ./agent/... ./tests
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/kernels/run ./tests/kernels
	@bin/kernels/run $(ARGS)

# The build with which the benchmarks compare, made once in a work tree.
FORMER := bin/e4cfea1/ipwitness
$(FORMER):
	git worktree add --force --detach bin/e4cfea1/src e4cfea1
	CGO_ENABLED=0 go -C bin/e4cfea1/src build -trimpath -buildvcs=false -ldflags '-s -w' -o ../ipwitness ./cmd/ipwitness
	git worktree remove --force bin/e4cfea1/src

# The agent of this build that follows no neighbour tables: it subscribes to a group that has no messages.
HEEDLESS := bin/heedless/ipwitness-agent
.PHONY: $(HEEDLESS)
$(HEEDLESS):
	@mkdir -p $(@D)
	@sed 's/unix.RTNLGRP_NEIGH)/unix.RTNLGRP_NOP2)/' agent/rtnetlink/rtnl.go > $(@D)/rtnl
	@! cmp -s agent/rtnetlink/rtnl.go $(@D)/rtnl
	@echo '{"Replace": {"$(CURDIR)/agent/rtnetlink/rtnl.go": "$(CURDIR)/$(@D)/rtnl"}}' > $(@D)/overlay.json
	$(GO_BUILD) -overlay $(@D)/overlay.json -o $@ ./cmd/ipwitness-agent

# The prerequisites of the selected benchmarks, or of all if none is selected.
BENCH_BUILDS := $(if $(strip $(ARGS)),$(if $(findstring runtime,$(ARGS)),containerd) \
	$(if $(findstring kubernetes,$(ARGS)),kubernetes) $(if $(findstring pods,$(ARGS)),$(FORMER)) \
	$(if $(findstring beliefs,$(ARGS)),$(HEEDLESS)),containerd kubernetes $(FORMER) $(HEEDLESS))
.PHONY: bench
bench: deps-test deps-bench build cni-plugins $(BENCH_BUILDS) ## Measure the budgets of the design; ARGS=storm selects one part
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/bench ./tests/bench
	@$(AS_ROOT) bin/bench $(ARGS)

.PHONY: mutate
mutate: ## Change PACKAGE at random in N places, and print the changes that its tests do not detect (minutes)
	@IPWITNESS_ROOT_TESTS=1 go run ./tests/mutate -exec '$(if $(filter 0,$(shell id -u)),,$(if $(shell type -P sudo),sudo -E env "PATH=$$PATH"))' \
		-package '$(PACKAGE)' -n $(N) -seed $(SEED) -files '$(FILES)' -want $(WANT)

.PHONY: lint
lint: lint-go lint-proto lint-c ## Check style, imports between packages, and common mistakes

.PHONY: fmt
fmt: $(GOLANGCI) $(BUF) deps-format ## Format all sources
	$(GOLANGCI) fmt
	$(BUF) format -w
	$(if $(C_FILES),$(CLANG_FORMAT) -i $(C_FILES))

.PHONY: lint-go
lint-go: $(GOLANGCI)
	$(GOLANGCI) config verify
	$(GOLANGCI) fmt --diff
	@$(call lint,. tests/web tools/image tools/release)

# The modules of tools with Go code of their own that need many other modules.
.PHONY: lint-tools
lint-tools: $(GOLANGCI)
	@$(call lint,tools/awsvpc tools/otelcol)

lint = for module in $(1); do \
	go -C $$module mod tidy -diff; \
	(cd $$module && '$(CURDIR)/$(GOLANGCI)' run --config '$(CURDIR)/.golangci.yml' --allow-serial-runners ./...); \
done

.PHONY: lint-c
lint-c: deps-format
	$(if $(C_FILES),$(CLANG_FORMAT) --dry-run -Werror $(C_FILES))

# The API may be extended, but existing parts must not change. Compare it with the last
# commit and the one before, as far as they exist. List intended breaking changes in
# buf.yaml, under breaking.ignore_only.
.PHONY: lint-proto
lint-proto: $(BUF)
	$(BUF) lint
	$(BUF) format --diff --exit-code
	@for ref in HEAD HEAD~1; do \
		git cat-file -e "$$ref:proto/ipwitness" 2>/dev/null || continue; \
		echo "$(BUF) breaking --against $$ref"; \
		git archive --format=tar -o bin/proto-before.tar "$$ref" proto buf.yaml; \
		$(BUF) breaking --against bin/proto-before.tar; \
		rm bin/proto-before.tar; \
	done

##@ Generate

.PHONY: generate
generate: generate-bpf generate-proto generate-web generate-situations generate-observability generate-deploy ## Regenerate all generated files

# Write the hash of the sources and results of a group of generated files into generated.sums.
sum = go test -count=1 ./tests/house -run '^TestGeneratedFilesAreUpToDate$$' -args -update $(1)

.PHONY: generate-bpf
generate-bpf: deps-bpf ## Regenerate bpf/*.o and their Go code
	go generate ./bpf
	@$(call sum,bpf)

.PHONY: generate-proto
generate-proto: $(BUF) $(PROTOC_PLUGINS) ## Regenerate proto/**: Go, gateway, OpenAPI
	$(BUF) generate
	go run ./tests/openapi bin/openapi.swagger.json proto/ipwitness/v1/openapi.json
	@$(call sum,proto)

# ci installs the versions of the lock file, and runs no scripts of packages.
WEB := aggregator/web/ui
WEB_MODULES := $(WEB)/node_modules/.package-lock.json
.PHONY: generate-web web-modules
generate-web: $(WEB_MODULES) ## Rebuild the web page, aggregator/web/dist, with the npm packages of its lock file
	npm --prefix $(WEB) run --silent build
	@$(call sum,web)

web-modules: $(WEB_MODULES)

$(WEB_MODULES): $(WEB)/package.json $(WEB)/package-lock.json
	@$(call need,$(WEB_NEEDS))
	npm --prefix $(WEB) ci --ignore-scripts --no-fund --no-audit --loglevel=error
	@touch $@

.PHONY: generate-situations
generate-situations: ## Regenerate docs/situations*, docs/incidents.md, docs/attacks.md, and the rooms in CONTRIBUTING.md
	go run ./tests/catalogue

.PHONY: generate-observability
generate-observability: ## Regenerate docs/metrics.md and the dashboards from the code
	@go test -count=1 -run '^TestMetricsReferenceIsUpToDate$$' ./cmd/ipwitness -args -update
	@go test -count=1 -run '^TestDashboardsAreUpToDate$$' ./tests/prometheus -args -update

.PHONY: update-pictures
update-pictures: deps-test deps-slow deps-pictures cni-plugins ## Render the dashboards in docs/images again, as root (minutes)
	go test -count=1 -timeout 20m $(EXEC_AS_ROOT) -run '^TestDashboardsAreDrawn$$' ./tests -args -pictures '$(CURDIR)/docs/images'

.PHONY: update-web-pictures
update-web-pictures: deps-test deps-pictures web-modules cni-plugins ## Take the pictures of the web page in docs/images again, as root (a minute)
	cd tests/web && IPWITNESS_ROOT_TESTS=1 go test -count=1 -timeout 10m $(EXEC_AS_ROOT) -run '^(TestPicturesOfTheDocs|TestTheTrendOfEachPool|TestFiftyThousandOwners.*)$$' . -args -pictures '$(CURDIR)/docs/images'

.PHONY: update-recording
update-recording: deps-demo cni-plugins ## Record the demo again for the README, as root (half a minute)
	go test -count=1 -timeout 10m $(EXEC_AS_ROOT) -run '^TestTheRecordingShowsTheDemo$$' ./tests -args -recording '$(CURDIR)/docs/images'

.PHONY: generate-deploy
generate-deploy: $(HELM) ## Regenerate the permissions for IPAMs in the chart, its list of values, and deploy/manifests
	go run ./tests/chart

# The tests whose texts are in docs/incidents.md, as a part of a regular expression.
INCIDENT_TESTS = $(subst $(space),|,$(sort $(foreach f,$(notdir $(basename $(wildcard tests/testdata/incidents/*.txt))),$(lastword $(subst -, ,$f)))))
.PHONY: update-situations
update-situations: deps-test deps-slow cni-plugins aws-vpc-cni containerd kubernetes ## Make the tests write their texts again, and regenerate the pages
	IPWITNESS_ROOT_TESTS=1 go test -count=1 -timeout 20m $(EXEC_AS_ROOT) -run '^Test([TL][0-9]|EachCapability|Attack|AFloodHides|AForgedFrame)|^($(INCIDENT_TESTS))$$' ./tests -args -update
	IPWITNESS_CLUSTER_TESTS=1 go test -count=1 -timeout 20m $(EXEC_AS_ROOT) -run '^Test[TL][0-9]|^($(INCIDENT_TESTS))$$' ./tests/kubernetes -args -update
	@$(MAKE) --no-print-directory generate-situations

# Compare checksums, not git diff, because uncommitted changes are allowed.
GENERATED_SUMS := find CONTRIBUTING.md generated.sums bpf proto docs deploy aggregator/web/dist -type f -regex '.*\(aggregator/web/dist/.*\|CONTRIBUTING\.md\|generated\.sums\|deploy/.*\(\.yaml\|/values\.schema\.json\)\|\.pb\.go\|\.pb\.gw\.go\|/openapi\.json\|_bpfel\.go\|\.o\|docs/.*\.md\|/dashboards/.*\.json\)' \
	-exec sha256sum {} + | sort -k 2
.PHONY: check-generate
check-generate: ## Fail if a generated file does not match its source
	@mkdir -p bin && $(GENERATED_SUMS) >bin/generated-before
	@$(MAKE) --no-print-directory generate
	@$(GENERATED_SUMS) | diff bin/generated-before - || { \
		echo 'These files were out of date and are remade now: look at them and commit them.'; \
		echo "Only bpf/*.o, with no change in its source? Another $(BPF2GO_CC) made it; here it is $$($(BPF2GO_CC) --version | head -n 1)"; \
		exit 1; } >&2
	@rm bin/generated-before

##@ Tools

.PHONY: cni-plugins
cni-plugins: $(CNI_PLUGINS) ## Build the real CNI plugins that tests and demo use

.PHONY: aws-vpc-cni
aws-vpc-cni: $(AWS_VPC) ## Build the real CNI plugin and allocation of the AWS VPC CNI

.PHONY: otelcol
otelcol: $(OTELCOL) ## Build the real OpenTelemetry collector that tests use

.PHONY: nats
nats: $(NATS) ## Build the real NATS server that tests use

.PHONY: kubernetes
kubernetes: $(KUBERNETES) $(ETCD) $(HELM) $(CALICO_CRDS) $(OPERATOR_CRDS) ## Build the real Kubernetes that the cluster's tests use

.PHONY: helm
helm: $(HELM) ## Build Helm, which renders the manifests of the chart

.PHONY: containerd
containerd: $(CONTAINERD) ## Build the newest containerd, which tests use in addition to Debian's

.PHONY: tools
tools: $(BUF) $(GOLANGCI) $(PROTOC_PLUGINS) ## Build the pinned lint and generation tools

.PHONY: deps
deps: deps-test deps-slow deps-bench deps-kernels deps-format deps-bpf deps-pictures deps-web ## Install the Debian packages that all targets need

.PHONY: clean
clean: ## Remove all build results (bin/)
	rm -rf bin

# Each tool has its own module, so that its dependencies affect neither other tools nor
# the product. touch is needed because go build does not update the time of a file that
# is up to date.
$(BUF): tools/buf/go.mod tools/buf/go.sum
	CGO_ENABLED=0 go -C tools/buf build -trimpath -o '$(CURDIR)/bin/tools/' tool
	@touch $@

$(GOLANGCI): tools/lint/go.mod tools/lint/go.sum
	CGO_ENABLED=0 go -C tools/lint build -trimpath -o '$(CURDIR)/bin/tools/' tool
	@touch $@

$(PROTOC_PLUGINS) &: tools/protoc/go.mod tools/protoc/go.sum
	CGO_ENABLED=0 go -C tools/protoc build -trimpath -o '$(CURDIR)/bin/tools/' tool
	@touch $(PROTOC_PLUGINS)

$(RELEASE_TOOL): tools/release/main.go tools/release/go.mod
	CGO_ENABLED=0 go -C tools/release build -trimpath -buildvcs=false -o '$(CURDIR)/$@' .
	@touch $@

$(SBOM_TOOL): tools/sbom/go.mod tools/sbom/go.sum
	CGO_ENABLED=0 go -C tools/sbom build -trimpath -o '$(CURDIR)/bin/tools/' tool
	@touch $@

$(IMAGE_TOOL): tools/image/main.go tools/image/go.mod tools/image/go.sum
	CGO_ENABLED=0 go -C tools/image build -trimpath -buildvcs=false -o '$(CURDIR)/$@' .
	@touch $@

CNI_MODULE := github.com/containernetworking/plugins
$(CNI_PLUGINS) &: tools/cni/go.mod tools/cni/go.sum
	v=$$(go -C tools/cni list -m -f '{{.Version}}' $(CNI_MODULE)); \
	CGO_ENABLED=0 go -C tools/cni build -trimpath -o '$(CURDIR)/bin/cni/' \
		-ldflags "-X $(CNI_MODULE)/pkg/utils/buildversion.BuildVersion=$$v" tool
	@touch $(CNI_PLUGINS)

# The CNI plugin of the AWS VPC CNI, and the part of its daemon that allocates addresses, which runs
# without EC2. They are not in bin/cni, because test-kernels copies that directory into its guests.
$(AWS_VPC) &: tools/awsvpc/main.go tools/awsvpc/go.mod tools/awsvpc/go.sum
	CGO_ENABLED=0 go -C tools/awsvpc build -trimpath -buildvcs=false -o '$(CURDIR)/bin/awsvpc/ipamd' .
	CGO_ENABLED=0 go -C tools/awsvpc build -trimpath -o '$(CURDIR)/bin/awsvpc/aws-cni' github.com/aws/amazon-vpc-cni-k8s/cmd/routed-eni-cni-plugin
	@touch $(AWS_VPC)

$(OTELCOL): tools/otelcol/main.go tools/otelcol/go.mod tools/otelcol/go.sum
	CGO_ENABLED=0 go -C tools/otelcol build -trimpath -buildvcs=false -ldflags '-s -w' -o '$(CURDIR)/$@' .
	@touch $@

$(NATS): tools/nats/go.mod tools/nats/go.sum
	CGO_ENABLED=0 go -C tools/nats build -trimpath -o '$(CURDIR)/$@' -ldflags '-s -w' tool
	@touch $@

# Kubernetes gets its own version from these variables. Its programs are built one at a
# time: each build needs more than a gigabyte of memory, and its result is kept if a later
# build fails.
K8S_VERSION = $(shell go -C tools/kubernetes list -m -f '{{.Version}}' k8s.io/kubernetes)
K8S_FLAGS = $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $p.gitVersion=$(K8S_VERSION) -X $p.gitTreeState=clean)
$(KUBERNETES): tools/kubernetes/go.mod tools/kubernetes/go.sum
	CGO_ENABLED=0 go -C tools/kubernetes build -trimpath -o '$(CURDIR)/bin/kubernetes/' \
		-ldflags '-s -w $(K8S_FLAGS)' k8s.io/kubernetes/cmd/$(@F)
	@touch $@

$(ETCD): tools/etcd/go.mod tools/etcd/go.sum
	CGO_ENABLED=0 go -C tools/etcd build -trimpath -o '$(CURDIR)/$@' -ldflags '-s -w' tool
	@touch $@

$(CALICO_CRDS): tools/calico/go.mod tools/calico/go.sum
	dir=$$(go -C tools/calico mod download -json github.com/projectcalico/calico | awk -F'"' '$$2 == "Dir" { print $$4 }'); \
	rm -rf $@ $@.new && mkdir -p $@.new; \
	install -m 644 "$$dir"/libcalico-go/config/crd/*.yaml $@.new/; \
	mv $@.new $@ # atomically, because make does not delete the directory of a failed target

# The API server validates our objects for Prometheus and cert-manager by these definitions.
$(OPERATOR_CRDS): tools/operators/go.mod tools/operators/go.sum
	rm -rf $@ $@.new && mkdir -p $@.new; \
	for d in prometheus-operator/prometheus-operator:example/prometheus-operator-crd cert-manager/cert-manager:deploy/crds; do \
		dir=$$(go -C tools/operators mod download -json github.com/$${d%:*} | awk -F'"' '$$2 == "Dir" { print $$4 }'); \
		install -m 644 "$$dir/$${d#*:}"/*.yaml $@.new/; \
	done; \
	mv $@.new $@

# Helm assumes this version of Kubernetes when it does not connect to a cluster.
HELM_MODULE := helm.sh/helm/v3
K8S_MINOR = $(word 2,$(subst ., ,$(K8S_VERSION)))
$(HELM): tools/helm/go.mod tools/helm/go.sum
	v=$$(go -C tools/helm list -m -f '{{.Version}}' $(HELM_MODULE)); \
	CGO_ENABLED=0 go -C tools/helm build -trimpath -o '$(CURDIR)/bin/kubernetes/' \
		-ldflags "-s -w -X $(HELM_MODULE)/internal/version.version=$$v \
			-X $(HELM_MODULE)/pkg/chartutil.k8sVersionMajor=1 -X $(HELM_MODULE)/pkg/chartutil.k8sVersionMinor=$(K8S_MINOR)" tool
	@touch $@

CONTAINERD_MODULE := github.com/containerd/containerd/v2
$(CONTAINERD) &: tools/containerd/go.mod tools/containerd/go.sum
	v=$$(go -C tools/containerd list -m -f '{{.Version}}' $(CONTAINERD_MODULE)); \
	CGO_ENABLED=0 go -C tools/containerd build -trimpath -o '$(CURDIR)/bin/containerd/' \
		-ldflags "-s -w -X $(CONTAINERD_MODULE)/version.Version=$$v" tool
	@touch $(CONTAINERD)

.PHONY: deps-test deps-slow deps-demo deps-bench deps-kernels deps-format deps-bpf deps-pictures deps-web
deps-kernels:
	@$(call need,$(KERNELS_NEEDS))

deps-test:
	@$(call need,$(TEST_NEEDS))

deps-slow:
	@$(call need,$(SLOW_NEEDS))

deps-web:
	@$(call need,$(WEB_NEEDS))

deps-demo:
	@$(call need,$(DEMO_NEEDS))

deps-pictures:
	@$(call need,$(PICTURES_NEEDS))

deps-bench:
	@$(call need,$(BENCH_NEEDS))

deps-format:
	@$(if $(C_FILES),$(call need,$(FORMAT_NEEDS)))

deps-bpf:
	@$(call need,$(BPF_NEEDS))

# need COMMAND-OR-FILE:PACKAGE… installs the packages of missing commands and files, or
# prints which packages to install. The second attempt is for machines with empty or
# outdated package lists, the third for a mirror that fails temporarily. Failures to update
# the lists are ignored, because an unrelated package source may be unreachable. Packages
# of daemons would start them; policy-rc.d prevents this during the installation.
define need
want=(); \
for n in $(1); do \
	what=$${n%%:*}; \
	[[ $$what == /* && -e $$what ]] || type -P "$$what" >/dev/null || want+=("$${n#*:}"); \
done; \
[[ $${#want[@]} == 0 ]] && exit; \
if [[ $$(id -u) == 0 ]] && type -P apt-get >/dev/null; then \
	export DEBIAN_FRONTEND=noninteractive; \
	echo "installing $${want[*]}"; \
	policy=/usr/sbin/policy-rc.d; \
	[[ -e $$policy ]] || { trap "rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; }; \
	apt=(apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300); \
	install=("$${apt[@]}" install --yes --no-install-recommends "$${want[@]}"); \
	"$${install[@]}" &>/dev/null </dev/null && exit; \
	for wait in 0 20; do \
		sleep $$wait; \
		"$${apt[@]}" update </dev/null || true; \
		"$${install[@]}" >/dev/null </dev/null && exit; \
	done; \
fi; \
{ \
	echo "missing Debian packages, or what your system calls them: $${want[*]}"; \
	echo "On Debian and Ubuntu: sudo apt-get install $${want[*]}"; \
	if [[ "$${want[*]}" == *-19* ]]; then \
		echo "A release without version 19 of clang and LLVM finds it at https://apt.llvm.org."; \
		echo "Only make generate, lint, fmt and check need them: build, run, test and demo do not."; \
	fi; \
} >&2; \
exit 1
endef
