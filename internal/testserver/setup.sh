#!/usr/bin/env bash
# Installs what the tests need and the machine lacks: the servers, and with
# "race" as argument the C compiler that Go's race detector needs. It says nothing
# if all is there. What it builds is in .bin, which may be kept from run to run.
set -euo pipefail

packages=()

# need PROGRAM PACKAGE: PROGRAM must be on the PATH; Debian's PACKAGE brings it.
need() {
	command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}

# install: never lets a package start its service, which would be a server that no
# test has asked for, on a port that the machine's owner may want.
install() {
	local policy=/usr/sbin/policy-rc.d
	# An existing policy is the machine owner's and stays.
	if [[ ! -e $policy ]]; then
		# shellcheck disable=SC2064 # the path is local: expand it now
		trap "rm -f $policy" EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	local apt=(apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
	"${apt[@]}" update
	"${apt[@]}" install --no-install-recommends "$@"
}

# build_etcd: Debian's etcd is years old. This one is built from its Go module, once for
# each version that etcd/go.mod names.
build_etcd() (
	root=$(cd "$(dirname "$0")/../.." && pwd)
	cd "$root/internal/testserver/etcd"
	version=$(go list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)
	mkdir -p "$root/.bin"
	built=$root/.bin/etcd-$version
	if [[ ! -x $built ]]; then
		echo "Building etcd $version, which takes a minute or two" >&2
		go build -trimpath -ldflags '-s -w' -o "$built.$$" go.etcd.io/etcd/server/v3
		mv "$built.$$" "$built"
	fi
	[[ $(readlink "$root/.bin/etcd") == "etcd-$version" ]] || ln -sfn "etcd-$version" "$root/.bin/etcd"
)

[[ -n ${HOLDFAST_TEST_ETCD:-} ]] || build_etcd
[[ -n ${HOLDFAST_TEST_REDIS:-} ]] || need redis-server redis-server
if [[ -z ${HOLDFAST_TEST_POSTGRES:-} ]]; then
	# Debian has it where no PATH leads.
	compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || need postgres postgresql
	[[ -x /usr/sbin/pgbouncer ]] || need pgbouncer pgbouncer
fi
if [[ -z ${HOLDFAST_TEST_ZOOKEEPER:-} ]]; then
	# ZooKeeper's library is enough: the package of that name is a service of the machine's.
	need java default-jre-headless
	[[ -e /usr/share/java/zookeeper.jar ]] || packages+=(libzookeeper-java)
fi
if [[ ${1:-} == race ]]; then
	need "${CC:-gcc}" gcc
	# Not gcc alone: without libc's headers it compiles nothing.
	[[ -e /usr/include/stdlib.h || $(uname) != Linux ]] || packages+=(libc6-dev)
fi

if ((${#packages[@]} == 0)); then
	exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "Install with this system's package manager, then try again: ${packages[*]}" >&2
	exit 1
fi
if ((EUID != 0)); then
	echo "The tests need ${packages[*]}. Run: sudo $0${1:+ $1}" >&2
	exit 1
fi
install "${packages[@]}"
