#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# dev.sh ROOT: the command line of ./dev and its install step, with stand-ins for the package tools.
set -uo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

expect() {  # CODE TEXT ARGUMENT...
  local code=$1 text=$2 output status
  shift 2
  output=$(cd / && "$root/dev" "$@" 2>&1 </dev/null)
  status=$?
  if [[ $status -ne $code || $output != *"$text"* ]]; then
    printf './dev %s: exit code %d (wanted %d), wanted "%s" in:\n%s\n' "$*" "$status" "$code" "$text" "$output"
    failures=$((failures + 1))
  fi
}
wants_log() { grep -qF -- "$1" "$folder/log" || { printf 'wanted "%s" in the log:\n%s\n' "$1" "$(cat "$folder/log")"; failures=$((failures + 1)); }; }

expect 0 'usage: ./dev COMMAND' help
expect 0 'usage: ./dev COMMAND'
expect 2 "no command 'trian'" trian
expect 2 "wants a number of ranks, not 'two'" train -n two
expect 2 'wants a number of ranks' train -n
expect 2 "no preset 'release' with tests" test release
expect 2 "format takes --check or nothing" format --chekc
expect 2 'install takes' install everything
expect 2 "bench takes kernels or step, not 'all-of-it'" bench all-of-it

# A machine where two packages are missing, then one without apt-get.
mkdir "$folder/bin"
cat >"$folder/bin/dpkg-query" <<'X'
#!/bin/bash
case ${!#} in libdnnl-dev | ninja-build) exit 1 ;; esac
printf 'install ok installed'
X
cat >"$folder/bin/apt-get" <<'X'
#!/bin/bash
echo "apt-get $* ($DEBIAN_FRONTEND)" >>"$LOG"
[[ $* != *install* ]] || exit "${APT:-0}"
X
cat >"$folder/bin/sudo" <<'X'
#!/bin/bash
exec "$@"
X
chmod +x "$folder"/bin/*
export LOG=$folder/log
: >"$LOG"
PATH=$folder/bin:$PATH expect 0 'installing ninja-build libdnnl-dev' install build
wants_log 'update (noninteractive)'
wants_log '--no-install-recommends ninja-build libdnnl-dev (noninteractive)'
APT=100 PATH=$folder/bin:$PATH expect 3 'apt-get could not install: ninja-build libdnnl-dev' install build
: >"$LOG"
APEX_NO_INSTALL=1 PATH=$folder/bin:$PATH expect 0 '' install build
[[ ! -s $LOG ]] || { echo "APEX_NO_INSTALL=1 installed something"; failures=$((failures + 1)); }

mkdir "$folder/bare"
for tool in bash dirname readlink; do ln -s "$(command -v "$tool")" "$folder/bare/$tool"; done
PATH=$folder/bare expect 3 'neither Debian nor Ubuntu' install build
if [[ $EUID -eq 0 ]] && command -v setpriv >/dev/null; then
  rm "$folder/bin/sudo"
  for tool in bash dirname readlink env; do ln -s "$(command -v "$tool")" "$folder/bin/$tool"; done
  cp "$root/dev" "$folder/dev"  # the tree itself may lie where nobody else can read
  chmod -R a+rX "$folder"
  output=$(cd / && setpriv --reuid=65534 --clear-groups env PATH="$folder/bin" bash "$folder/dev" install build 2>&1)
  if [[ $output != *'neither root nor a user with sudo; as root: apt-get install ninja-build libdnnl-dev'* ]]; then
    printf 'without root and sudo it should say what to install, but said:\n%s\n' "$output"
    failures=$((failures + 1))
  fi
fi

printf './dev: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
