GOLANGCI_VERSION := v2.15.0
GOLANGCI         := $(CURDIR)/.bin/golangci-lint-$(GOLANGCI_VERSION)

# Every module of the repository: those below the root have dependencies that the
# main one must not get.
MODULES := $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*'))

# With HOLDFAST_STRICT a fault that a backend's harness cannot inject is a failure.
# Most of what runs in parallel, packages and tests, waits for leases to end; under the race
# detector less of it, or two CPUs are too few for servers and clients to be in time.
TEST := HOLDFAST_STRICT=1 go test -timeout 30m -parallel 6

.DEFAULT_GOAL := help
.PHONY: help setup test race torture lint bench

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

setup: ## Install or build the servers that the tests start (Debian, as root)
	@internal/testserver/setup.sh

test: setup ## Run all tests, against real servers
	$(TEST) -p 4 ./...

race: ## Run all tests under the race detector
	@internal/testserver/setup.sh race
	$(TEST) -p 2 -race ./...

# For how long, all backends together. What is broken on purpose comes on top.
TORTURE ?= 5m

torture: setup ## Torture all backends for TORTURE=5m, and write docs/torture.md
	@mkdir -p .torture
	TORTURE=$(TORTURE) TORTURE_REPORT="TORTURE=$(TORTURE) make torture" \
		go test -count 1 -timeout 0 -parallel 4 -artifacts -outputdir $(CURDIR)/.torture ./internal/torture

lint: $(GOLANGCI) ## Check style and formatting of every module
	@set -e; for module in $(MODULES); do \
		echo "golangci-lint: $$module"; \
		(cd "$$module" && $(GOLANGCI) run --allow-parallel-runners); \
	done

bench: setup ## Run the benchmarks
	go test -run '^$$' -bench . ./...

# Built from source, and not as a tool of go.mod, whose users would have to carry
# the dependencies of a linter.
$(GOLANGCI):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(@D)/golangci-lint $@
