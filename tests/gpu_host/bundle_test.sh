#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# bundle_test.sh BUILD: packs a build, unpacks it elsewhere and runs the section that needs no GPU; then a section that
# needs one must fail, not pass by doing nothing, unless there is one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/pack.sh" "$1" "$folder/bundle.tar.gz"
tar -C "$folder" -xzf "$folder/bundle.tar.gz"
cd "$folder"
unset OUT
if ! OMP_NUM_THREADS=1 apex-gpu-host/run.sh self; then
  tail -n 20 gpu-host-out/logs/*.log
  exit 1
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  ! OUT=$folder/ddp apex-gpu-host/run.sh ddp || { echo "ddp passed without a GPU"; exit 1; }
  ! OUT=$folder/late apex-gpu-host/run.sh --limit 0 self || { echo "what was not run counted as passed"; exit 1; }
  grep -q '^NOT RUN' "$folder/late/results.tsv"
fi
! apex-gpu-host/run.sh everything 2>/dev/null || { echo "an unknown section passed"; exit 1; }
