#!/usr/bin/env bash
# Installs what the tests need and the machine lacks: the servers, and with
# "race" as argument the C compiler that Go's race detector needs. It says nothing
# if all is there.
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

[[ -n ${HOLDFAST_TEST_REDIS:-} ]] || need redis-server redis-server
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
