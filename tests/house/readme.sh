#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# readme.sh ROOT BUILD: runs the README's commands as they are written. A comment before each block says where:
#   <!-- runs in: build folder -->   here, in a scratch folder that looks like the build folder
#   <!-- runs in: source folder -->  here, when BUILD is a folder that ./dev uses
#   <!-- run by: ... -->             elsewhere, or needs a cluster
# A block of commands without such a comment is an error. Trainings are cut short through the environment.
set -uo pipefail
root=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/tree/build/dev"
ln -s "$build/apps" "$scratch/tree/build/dev/apps"
ln -s "$root/tests" "$scratch/tree/tests"
failures=0 ran=0

run_block() {  # LINE PLACE FILE
  local folder
  case $2 in
    'runs in: build folder') folder=$scratch/tree/build/dev ;;
    'runs in: source folder')
      case $(realpath "$build") in
        "$(realpath "$root/build")"/dev | "$(realpath "$root/build")"/cuda) export APEX_PRESET=${build##*/} ;;
        *) return 0 ;;
      esac
      folder=$root
      ;;
    'run by: '*) return 0 ;;
    *)
      printf 'README.md:%d: no comment says where this block runs\n' "$1"
      failures=$((failures + 1))
      return
      ;;
  esac
  local start=$SECONDS
  ran=$((ran + 1))
  if ! (
    cd "$folder"
    # Other programs know no such option and say so.
    if grep -qE 'imagenet_train|dev train' "$3"; then export APEX_OPT_MAX_STEPS=3; fi
    bash -eu "$3"
  ) </dev/null >"$scratch/out" 2>&1; then
    printf 'README.md:%d: these commands fail:\n%s\n--- they said:\n%s\n' "$1" "$(cat "$3")" "$(tail -n 30 "$scratch/out")"
    failures=$((failures + 1))
  fi
  printf 'README.md:%d: %d s\n' "$1" $((SECONDS - start))
}

line=0 place='' inside=0
while IFS= read -r text; do
  line=$((line + 1))
  if ((inside)); then
    if [[ $text == '```' ]]; then
      inside=0
      run_block "$first" "$place" "$scratch/block"
      place=''
    else
      printf '%s\n' "$text" >>"$scratch/block"
    fi
  elif [[ $text =~ ^\<!--\ (.*)\ --\>$ ]]; then
    place=${BASH_REMATCH[1]}
  elif [[ $text == '```bash' ]]; then
    inside=1 first=$line
    : >"$scratch/block"
  elif [[ -n $text ]]; then
    place=''
  fi
done <"$root/README.md"

printf 'readme: %d blocks run, %d failures\n' "$ran" "$failures"
[[ $failures -eq 0 && $ran -gt 3 ]]
