#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# install.sh ROOT BUILD COMPILER MPIEXEC [INCLUDE FOLDER...]: installs BUILD, moves the whole elsewhere, and uses it from
# there alone: an outside project finds it, is compiled, trains over two ranks; a wrong version is refused; the programs
# run; no folder of the build is named. The include folders are those of MPI and, for a build with it, of CUDA.
set -uo pipefail
root=$1 build=$2 compiler=$3 mpiexec=$4
shift 4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset LD_LIBRARY_PATH
failures=0
fault() {
  printf '%s\n' "$*"
  failures=$((failures + 1))
}
give_up() {
  fault "$@"
  exit 1
}

cmake --install "$build" --prefix "$folder/first" >"$folder/log" 2>&1 || give_up "install: $(tail -n 20 "$folder/log")"
mkdir "$folder/a folder"
prefix="$folder/a folder/moved"
mv "$folder/first" "$prefix"

# ---- every public header came along, and they compile together ---------------------------------------------------------
list() { (cd "$1" && find apex -name '*.hpp' | sort); }
for component in kernels collectives io lib; do list "$root/$component/include"; done | sort >"$folder/wanted"
list "$prefix/include" >"$folder/installed"
diff "$folder/wanted" "$folder/installed" >"$folder/diff" || fault "headers differ: $(head -n 5 "$folder/diff")"
cuda=()
grep -q 'Apex_CUDA ON' "$prefix"/lib*/cmake/Apex/ApexConfig.cmake && cuda=(-DAPEX_HAS_CUDA=1)
includes=(-I "$prefix/include")
for each in "$@"; do includes+=(-isystem "$each"); done
while IFS= read -r header; do
  # Headers for programming with CUDA and NCCL themselves need theirs.
  ((${#cuda[@]})) || ! grep -qE '#include [<"](cuda_runtime_api\.h|nccl\.h|apex/core/cuda\.hpp|apex/collectives/nccl\.hpp)' \
    "$prefix/include/$header" || continue
  printf '#include <%s>\n' "$header"
done <"$folder/installed" >"$folder/all.cpp"
"$compiler" -std=c++20 -Wall -Wextra -Werror -fsyntax-only "${cuda[@]}" "${includes[@]}" "$folder/all.cpp" \
  >"$folder/log" 2>&1 || fault "the installed headers do not compile: $(head -n 12 "$folder/log")"

# ---- nothing names the folders it was built in ---------------------------------------------------------------------------
grep -rlIF -e "$root/" -e "$build" -e "$folder/first" "$prefix" >"$folder/names" && fault "names the build: $(cat "$folder/names")"
for file in "$prefix"/bin/* "$prefix"/lib*/*.so; do
  [[ -f $file ]] || continue
  path=$(readelf -d "$file" | sed -n 's/.*(R.*PATH).*\[\(.*\)\]/\1/p')
  [[ $path != *"$build"* && $path != *"$root/"* ]] || fault "$file searches $path"
  ! ldd "$file" | grep -q 'not found' || fault "$file lacks libraries: $(ldd "$file" | grep 'not found')"
  ! ldd "$file" | grep libapex | grep -qv "$prefix" || fault "$file takes another libapex: $(ldd "$file" | grep libapex)"
done
for program in imagenet_train pack_images apex_ckpt apex_info apex_conformance; do
  "$prefix/bin/$program" --help >"$folder/log" 2>&1 || fault "$program --help: $(tail -n 5 "$folder/log")"
done
for script in imagenet_train.sbatch imagenet_train_mpirun.sbatch; do
  [[ -x $prefix/share/apex/slurm/$script ]] || fault "no $script"
done

# ---- somebody else's project -------------------------------------------------------------------------------------------
configure() {  # BUILD VERSION
  cmake -G Ninja -S "$root/tests/house/outside" -B "$1" -D CMAKE_PREFIX_PATH="$prefix" -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_CXX_COMPILER="$compiler" -D WANTED="$2" -D CMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$folder/log" 2>&1
}
configure "$folder/build" 0.1 || give_up "the outside project does not configure: $(tail -n 20 "$folder/log")"
grep -q 'apex 0\.1\.' "$folder/log" || fault "no version: $(cat "$folder/log")"
for unwanted in -Werror -Wall -march= -ffp-contract "$root/kernels" "$root/lib/include"; do
  ! grep -qF -e "$unwanted" "$folder/build/compile_commands.json" || fault "the outside program must not get $unwanted"
done
cmake --build "$folder/build" >"$folder/log" 2>&1 || give_up "the outside project does not build: $(tail -n 20 "$folder/log")"
ldd "$folder/build/outside" | grep libapex | grep -qv "$prefix" && fault "it takes another libapex"
"$mpiexec" -n 2 "$folder/build/outside" "$folder/checkpoints" >"$folder/log" 2>&1 ||
  fault "the outside program fails: $(tail -n 20 "$folder/log")"
grep -q '^2 ranks, .*step_00000002\.h5' "$folder/log" || fault "the outside program said: $(cat "$folder/log")"
"$prefix/bin/apex_ckpt" verify "$folder/checkpoints" >"$folder/log" 2>&1 ||
  fault "its checkpoint is damaged: $(cat "$folder/log")"

for version in 0.0 0.2 1.0; do
  configure "$folder/build-$version" "$version" && fault "version $version was asked for and 0.1 was given"
  grep -q 'version: 0\.1\.0' "$folder/log" || fault "version $version: $(cat "$folder/log")"
done

# ---- pkg-config --------------------------------------------------------------------------------------------------------
pc=$(find "$prefix" -name apex.pc)
if [[ -n $pc ]] && command -v pkg-config >/dev/null && command -v mpicxx >/dev/null; then
  export PKG_CONFIG_PATH=${pc%/*}
  eval "flags=($(pkg-config --cflags --libs apex))"
  OMPI_CXX=$compiler MPICH_CXX=$compiler mpicxx "$root/tests/house/outside/main.cpp" -o "$folder/by-hand" "${flags[@]}" \
    >"$folder/log" 2>&1 || fault "pkg-config's flags do not do: $(tail -n 20 "$folder/log")"
  "$mpiexec" -n 2 "$folder/by-hand" "$folder/by-hand.ckpt" >"$folder/log" 2>&1 || fault "by hand: $(tail -n 20 "$folder/log")"
fi

printf 'install: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
