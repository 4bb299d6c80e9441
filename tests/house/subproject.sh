#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# subproject.sh ROOT: a project that adds apex with add_subdirectory configures, gets the include folders and the language
# standard, and none of the warnings and code options that apex builds itself with; apex builds no tests there.
set -euo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_subdirectory($root apex)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE Apex::apex)
CMAKE
echo 'int main() {}' >"$folder/main.cpp"
if ! cmake -G Ninja -S "$folder" -B "$folder/build" >"$folder/log" 2>&1; then
  tail -n 30 "$folder/log"
  exit 1
fi

command=$(grep '"command"' "$folder/build/compile_commands.json" | grep 'user.dir/main.cpp')
failures=0
for wanted in -std= "$root/lib/include" "$root/kernels/include"; do
  [[ $command == *"$wanted"* ]] || { echo "lacks $wanted: $command"; failures=1; }
done
for unwanted in -Werror -Wall -march= -ffp-contract; do
  [[ $command != *"$unwanted"* ]] || { echo "must not get $unwanted: $command"; failures=1; }
done
! grep -q tests/ "$folder/build/compile_commands.json" || { echo "builds apex's tests"; failures=1; }
exit "$failures"
