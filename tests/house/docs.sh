#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# docs.sh DOXYFILE: Doxygen has nothing to complain about in the public headers, and would say so if it had.
set -uo pipefail
if ! command -v doxygen >/dev/null; then
  echo "no doxygen: skipped"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
pages() { { cat "$1" && printf 'OUTPUT_DIRECTORY = "%s"\n%s\n' "$folder" "${2:-}"; } | doxygen - >"$folder/log" 2>&1; }

if ! pages "$1" || [[ -s $folder/log ]]; then
  echo "doxygen complains:"
  head -n 40 "$folder/log"
  failures=$((failures + 1))
fi
for page in index classapex_1_1Tensor namespaceapex_1_1kernels classapex_1_1dist_1_1Session classapex_1_1io_1_1TensorBoardWriter \
  classapex_1_1parallel_1_1DistributedDataParallel; do
  [[ -s $folder/html/$page.html ]] || { echo "no page $page"; failures=$((failures + 1)); }
done

# A comment that names an argument which is not there.
printf '#pragma once\n/// Adds.\n/// @param c  none such\nint add(int a, int b);\n' >"$folder/bad.hpp"
if pages "$1" "INPUT += \"$folder/bad.hpp\"" || ! grep -q "bad.hpp:.*argument 'c'" "$folder/log"; then
  echo "a wrong comment went unnoticed: $(cat "$folder/log")"
  failures=$((failures + 1))
fi
printf 'docs: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
