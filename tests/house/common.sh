# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Shared by the house checks: the files of a tree, and how a finding is reported.

export LC_ALL=C.UTF-8  # columns are characters, not bytes
findings=0
finding() {  # FILE[:LINE] TEXT
  printf '%s: %s\n' "$1" "$2"
  findings=$((findings + 1))
}

# Files of the tree, relative to it: what git tracks, or in a tree without git everything outside build folders.
tree_files() {  # ROOT [NAME PATTERN...]
  local root=$1
  shift
  if [[ $(git -C "$root" rev-parse --show-toplevel 2>/dev/null) == "$(cd "$root" && pwd -P)" ]]; then
    git -C "$root" ls-files -- "$@"
  else
    local patterns=() pattern
    for pattern in "$@"; do patterns+=(-o -name "${pattern##*/}"); done
    (cd "$root" && find . -path './build*' -prune -o -type f \( "${patterns[@]:1}" \) -print | sed 's|^\./||')
  fi | while IFS= read -r file; do
    [[ -f $root/$file ]] && printf '%s\n' "$file"
  done
}

finish() {  # WHAT COUNT
  printf '%s: %d files, %d findings\n' "$1" "$2" "$findings"
  [[ $2 -gt 0 ]] || { echo "$1: nothing was checked" >&2; exit 1; }
  [[ $findings -eq 0 ]]
}
