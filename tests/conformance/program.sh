#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# program.sh PROGRAM GOLDENS: the command line of apex_conformance: what it says and its exit codes.
set -uo pipefail
program=$1 goldens=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

expect() {  # CODE TEXT ARGUMENT...: exit code, and a text in what it prints
  local code=$1 text=$2 output status
  shift 2
  output=$("$program" "$@" 2>&1)
  status=$?
  if [[ $status -ne $code || $output != *"$text"* ]]; then
    printf 'apex_conformance %s: exit code %d (wanted %d), wanted "%s" in:\n%s\n' "$*" "$status" "$code" "$text" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 'usage: apex_conformance' --help
expect 2 'no PATH given'
expect 2 '--op nonsense is not known; there are adagrad, adam' --op nonsense "$goldens"
expect 2 '--device is cpu, cuda or all' --device tpu "$goldens"
expect 2 '--dtype is f64 or f32' --dtype f16 "$goldens"
expect 2 '--fast' --fast "$goldens"
expect 2 '--dev' --dev cpu "$goldens"
expect 3 'no such file or folder' "$folder/missing"
expect 3 'no .h5 file in this folder' "$folder"

echo 'not HDF5' >"$folder/text.h5"
expect 1 '0 passed, 1 failed' "$folder"
expect 1 'not a readable HDF5 file' "$folder/text.h5"

cp "$goldens/resnet_training.h5" "$folder/truncated.h5"
truncate -s -1 "$folder/truncated.h5"
expect 1 'not a readable HDF5 file' "$folder/truncated.h5"

expect 0 '1 passed, 0 failed, 1 skipped' --dtype f32 --device cpu "$goldens/resnet_training.h5"

printf 'apex_conformance: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
