#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# sources.sh ROOT: what every file of ours has or has not: licence lines, a size one can read, no unfinished work, no
# paths of somebody's machine; and every source is named in a CMake file (they are listed, not globbed).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
root=$1
max_lines=700

# Written with brackets so that this file does not match itself.
unfinished='\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b'
machine_paths='(^|[^[:alnum:]_.])/(wo[r]k|roo[t]|hom[e])/|/tmp/brie[f]|\.librar[y]/'

report_matches() {  # FILE PATTERN TEXT
  local line
  while IFS=: read -r line _; do finding "$1:$line" "$3"; done < <(grep -nIE "$2" "$root/$1" || true)
}

has_licence() { head -n 3 "$root/$1" | grep -q 'SPDX-FileCopyrightText: ' && head -n 3 "$root/$1" | grep -q 'SPDX-License-Identifier: BSD-3-Clause'; }

cmake_text=$(tree_files "$root" '*CMakeLists.txt' '*.cmake' | while IFS= read -r file; do cat "$root/$file"; done)

count=0
while IFS= read -r file; do
  count=$((count + 1))
  report_matches "$file" "$machine_paths" "a path of one machine"
  case $file in
    *.cpp | *.hpp | *.cu | *.cuh | *.cmake | *CMakeLists.txt | *.sh | *.py | *.sbatch | dev | .ci/run)
      has_licence "$file" || finding "$file" "lacks the two SPDX lines"
      report_matches "$file" "$unfinished" "unfinished work"
      report_matches "$file" '[[:space:]]$' "trailing white space"
      report_matches "$file" $'\t' "a tab"
      lines=$(wc -l <"$root/$file")
      [[ $lines -le $max_lines ]] || finding "$file" "$lines lines; split files above $max_lines by topic"
      ;;
  esac
  case $file in
    *.cpp | *.hpp | *.cu | *.cuh) report_matches "$file" '^.{121}' "longer than 120 columns" ;;
  esac
  case $file in
    *.cpp | *.cu)
      grep -qF "$(basename "$file")" <<<"$cmake_text" || finding "$file" "named in no CMake file, so never built"
      ;;
    tests/*) ;;
    *CMakeLists.txt | *.cmake) report_matches "$file" 'file\(GLOB' "globbed sources; list them" ;;
  esac
done < <(tree_files "$root" '*')
finish sources "$count"
