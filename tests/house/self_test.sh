#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# self_test.sh COMPILER: the house checks must report each kind of fault in a small tree made for it, and nothing else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
compiler=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

spdx() { printf '// SPDX-FileCopyrightText: the apex authors\n// SPDX-License-Identifier: BSD-3-Clause\n'; }
put() {  # FILE TEXT...: a file with its licence lines
  mkdir -p "$tree/$(dirname "$1")"
  { spdx; printf '%s\n' "${@:2}"; } >"$tree/$1"
}
clean_tree() {
  rm -rf "${tree:?}"/*
  put kernels/include/apex/core/a.hpp '#pragma once' '#include <vector>' 'inline std::vector<int> a() { return {}; }'
  put kernels/include/apex/kernels/k.hpp '#pragma once' '#include "apex/core/a.hpp"'
  put collectives/include/apex/collectives/c.hpp '#pragma once' '#include "apex/kernels/k.hpp"'
  put io/include/apex/io/i.hpp '#pragma once' '#include "apex/core/a.hpp"'
  put lib/include/apex/l.hpp '#pragma once' '#include "apex/collectives/c.hpp"' '#include "apex/io/i.hpp"'
  put lib/src/l.cpp '#include "apex/l.hpp"'
  printf '# SPDX-FileCopyrightText: the apex authors\n# SPDX-License-Identifier: BSD-3-Clause\nadd_library(l l.cpp)\n' \
    >"$tree/CMakeLists.txt"
}

passes() {  # CHECK
  local output
  output=$("$here/$1.sh" "$tree" "$compiler" 2>&1) && return
  printf 'the clean tree fails %s:\n%s\n' "$1" "$output"
  failures=$((failures + 1))
}

reports() {  # CHECK TEXT, then the tree is clean again
  local output
  if output=$("$here/$1.sh" "$tree" "$compiler" 2>&1) || [[ $output != *"$2"* || $output != *"1 findings"* ]]; then
    printf '%s should report exactly "%s", but said:\n%s\n' "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
  clean_tree
}

clean_tree
for check in includes sources headers; do passes "$check"; done

put kernels/include/apex/core/a.hpp '#include "apex/kernels/k.hpp"'
reports includes 'core may not include kernels'
put kernels/src/k.cpp '#include "apex/collectives/c.hpp"'
reports includes 'kernels may not include collectives'
put kernels/src/k.cpp '#  include <apex/l.hpp>'
reports includes 'kernels may not include lib'
put kernels/src/k.cpp '#include <mpi.h>'
reports includes 'kernels may not include mpi.h'
put kernels/src/k.cpp '#include "../../io/include/apex/io/i.hpp"'
reports includes 'kernels may not include io'
put io/src/i.cpp '#include "apex/kernels/k.hpp"'
reports includes 'io may not include kernels'
put io/src/i.cpp '#include "apex/collectives/c.hpp"'
reports includes 'io may not include collectives'
put collectives/src/c.cpp '#include "apex/io/i.hpp"'
reports includes 'collectives may not include io'
put lib/src/l.cpp '#include <hdf5.h>'
reports includes 'lib may not include hdf5.h'
put lib/include/apex/l.hpp '#include <nlohmann/json.hpp>'
reports includes 'a public header may not include nlohmann/json.hpp'
put lib/src/l.cpp '#include "apex/gone.hpp"'
reports includes 'which no component has'

printf 'int x;\n' >"$tree/lib/src/l.cpp"
reports sources 'lacks the two SPDX lines'
put lib/src/l.cpp "// TO""DO: later"
reports sources 'unfinished work'
put lib/src/l.cpp 'const char* p = "/roo''t/data";'
reports sources 'a path of one machine'
put lib/src/l.cpp "// $(printf 'x%.0s' {1..130})"
reports sources 'longer than 120 columns'
put lib/src/l.cpp 'int x; '
reports sources 'trailing white space'
put lib/src/forgotten.cpp 'int x;'
reports sources 'named in no CMake file'
put lib/src/l.cpp "$(seq -f '// line %g' 800)"
reports sources 'split files above'

put io/include/apex/io/i.hpp '#pragma once' 'inline std::vector<int> b() { return {}; }'
reports headers 'io/include/apex/io/i.hpp does not compile alone'
put io/include/apex/io/i.hpp 'inline int unguarded() { return 1; }'
if output=$("$here/headers.sh" "$tree" "$compiler" 2>&1) || [[ $output != *redefinition* ]]; then
  printf 'headers should report the missing guard, but said:\n%s\n' "$output"
  failures=$((failures + 1))
fi

printf 'house self-test: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
