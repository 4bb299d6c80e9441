#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# includes.sh ROOT: reads every #include and reports those that point against the layers:
#   apps -> lib -> {kernels, collectives, io}; collectives -> kernels; io -> core; kernels -> core
# and libraries included outside the layer that owns them, or in a public header that every user would then compile.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
root=$1

declare -A may_include=(
  [core]="core"
  [kernels]="core kernels"
  [collectives]="core kernels collectives"
  [io]="core io"
  [lib]="core kernels collectives io lib"
  [apps]="core kernels collectives io lib apps"
)

declare -A owners=(  # library header -> layers that may include it; tests may include all
  [mpi.h]="collectives io lib apps"
  [nccl.h]="collectives"
  [hdf5.h]="io apps"
  [dnnl.hpp]="kernels" [oneapi/dnnl/dnnl.hpp]="kernels"
  [jpeglib.h]="io" [png.h]="io" [zlib.h]="io" [xxhash.h]="io"
  [cuda_runtime.h]="core kernels collectives" [cublasLt.h]="kernels" [cudnn_frontend.h]="kernels"
  [dlpack/dlpack.h]="core"
)
owners_aside='^apps/info/'  # reports the versions of all of them
# Public headers stay light: of other people's only these ...
public_header_may='^(mpi\.h)$'
# ... but for the two that are there for programming with CUDA and NCCL themselves.
cuda_headers='^(kernels/include/apex/core/cuda|collectives/include/apex/collectives/nccl)\.hpp$'
cuda_header_may='^(cuda_runtime_api\.h|nccl\.h)$'

layer_of_file() {
  case $1 in
    kernels/include/apex/core/* | kernels/src/core/*) echo core ;;
    kernels/* | collectives/* | io/* | lib/* | apps/*) echo "${1%%/*}" ;;
    *) echo '' ;;
  esac
}

layer_of_include() {  # "apex/..." -> the layer whose include folder holds it
  local component
  for component in kernels collectives io lib; do
    if [[ -f $root/$component/include/$1 ]]; then
      layer_of_file "$component/include/$1"
      return
    fi
  done
}

check_include() {  # FILE LINE LAYER QUOTE HEADER
  local file=$1 line=$2 layer=$3 quote=$4 header=$5 target='' path
  if [[ $header == apex/* ]]; then
    target=$(layer_of_include "$header")
    [[ -n $target ]] || finding "$file:$line" "includes $header, which no component has"
  elif [[ $quote == '"' && -f $root/${file%/*}/$header ]]; then
    path=$(realpath --relative-to="$root" "$root/${file%/*}/$header")
    target=$(layer_of_file "$path")
    [[ -n $target || -z $layer ]] || finding "$file:$line" "includes $path, which belongs to no layer"
  fi
  [[ -n $layer ]] || return 0
  if [[ -n $target && " ${may_include[$layer]} " != *" $target "* ]]; then
    finding "$file:$line" "$layer may not include $target ($header)"
  fi
  if [[ -n ${owners[$header]:-} && ! $file =~ $owners_aside && " ${owners[$header]} " != *" $layer "* ]]; then
    finding "$file:$line" "$layer may not include $header; it belongs to ${owners[$header]}"
  fi
  if [[ $file == */include/* && $header != apex/* && $header == *[./]* && ! $header =~ $public_header_may ]] &&
    ! [[ $file =~ $cuda_headers && $header =~ $cuda_header_may ]]; then
    finding "$file:$line" "a public header may not include $header"
  fi
}

include_line='^[[:space:]]*#[[:space:]]*include[[:space:]]*(["<])([^">]+)[">]'
count=0
while IFS= read -r file; do
  count=$((count + 1))
  layer=$(layer_of_file "$file")
  while IFS=: read -r line text; do
    [[ $text =~ $include_line ]] || continue
    check_include "$file" "$line" "$layer" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
  done < <(grep -nE '^[[:space:]]*#[[:space:]]*include' "$root/$file" || true)
done < <(tree_files "$root" '*.cpp' '*.hpp' '*.cu' '*.cuh')
finish includes "$count"
