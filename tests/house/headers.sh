#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# headers.sh ROOT COMPILER [MPI INCLUDE FOLDER...] [--cuda INCLUDE FOLDER...]: compiles every public header alone, with
# the include folders of its own layer and those below and no others. Headers for CUDA itself are compiled with --cuda.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
root=$1 compiler=$2
shift 2
mpi=() cuda=() into=mpi
for folder in "$@"; do
  if [[ $folder == --cuda ]]; then
    into=cuda cuda=(-DAPEX_HAS_CUDA=1)
  elif [[ $into == mpi ]]; then
    mpi+=(-isystem "$folder")
  else
    cuda+=(-isystem "$folder")
  fi
done

declare -A below=([kernels]="kernels" [collectives]="kernels collectives" [io]="kernels io" [lib]="kernels collectives io lib")

compile() {  # HEADER
  local header=$1 component=${1%%/*} includes=() layer
  for layer in ${below[$component]}; do includes+=(-I "$root/$layer/include"); done
  [[ $component == kernels ]] || includes+=("${mpi[@]}")
  includes+=("${cuda[@]}")
  local name=${header#*/include/} output
  # Twice, so that a header without a guard is found as well.
  if ! output=$(printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$compiler" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -x c++ "${includes[@]}" - 2>&1); then
    printf '%s does not compile alone:\n%s\n' "$header" "$(head -n 12 <<<"$output")"
    return 1
  fi
}

mapfile -t headers < <(tree_files "$root" '*.hpp' | grep -E '^(kernels|collectives|io|lib)/include/' || true)
if ((${#cuda[@]} == 0)); then
  kept=()
  for header in "${headers[@]}"; do
    grep -qE '#include [<"](cuda_runtime_api\.h|nccl\.h|apex/core/cuda\.hpp|apex/collectives/nccl\.hpp)[>"]' "$root/$header" ||
      kept+=("$header")
  done
  printf 'headers: %d for CUDA left out\n' $((${#headers[@]} - ${#kept[@]}))
  headers=("${kept[@]}")
fi
running=0
for header in "${headers[@]}"; do
  if ((running >= $(nproc))); then
    wait -n || findings=$((findings + 1))
    running=$((running - 1))
  fi
  compile "$header" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || findings=$((findings + 1))
  running=$((running - 1))
done
finish headers "${#headers[@]}"
