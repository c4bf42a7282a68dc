GOLANGCI_VERSION := v2.15.0
GOLANGCI         := $(CURDIR)/.bin/golangci-lint-$(GOLANGCI_VERSION)

# Every module of the repository: those below the root have dependencies that the
# main one must not get.
MODULES := $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*'))

# With HOLDFAST_STRICT a fault that a backend's harness cannot inject is a failure.
# Most of what runs in parallel waits for leases to end.
TEST := HOLDFAST_STRICT=1 go test -timeout 20m -parallel 6

.DEFAULT_GOAL := help
.PHONY: help setup test race lint bench

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

setup: ## Install the servers that the tests start (Debian, as root)
	@internal/testserver/setup.sh

test: setup ## Run all tests, against real servers
	$(TEST) ./...

race: ## Run all tests under the race detector
	@internal/testserver/setup.sh race
	$(TEST) -race ./...

lint: $(GOLANGCI) ## Check style and formatting of every module
	@set -e; for module in $(MODULES); do \
		echo "golangci-lint: $$module"; \
		(cd "$$module" && $(GOLANGCI) run); \
	done

bench: setup ## Run the benchmarks
	go test -run '^$$' -bench . ./...

# Built from source, and not as a tool of go.mod, whose users would have to carry
# the dependencies of a linter.
$(GOLANGCI):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(@D)/golangci-lint $@
