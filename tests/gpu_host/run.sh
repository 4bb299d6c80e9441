#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# Tests and timings on a GPU host, from an unpacked bundle (pack.sh). Logs go to $OUT, or ./gpu-host-out; a table of what
# was run comes last, and the exit code is 0 only if all of it passed.
#
#   run.sh [-j N] [--limit SECONDS] [--only TEXT] [--skip-launched] [--tool memcheck|racecheck] [SECTION...]
#
#   self         programs start, conformance on the CPU: works on any machine
#   info         the devices and the libraries
#   tests        every test for as many GPUs as there are, -j at a time (4)
#   conformance  the recorded cases on all devices
#   sanitize     compute-sanitizer over tests of one process, in shards, -j at a time, over all GPUs: memcheck of every
#                kernel, then racecheck of the library's own (it takes the asynchronous copies in cuDNN's for races) in
#                the kernels' tests; and how many of the library's kernels either set of tests launched
#   bench-ops bench-optim          kernels and optimizer steps beside PyTorch's
#   bench-step [bench-compile]     ResNet-50, batch 256: eager and by CUDA graph, f16 and bf16, plans cold and warm, host
#                                  waits; bench-compile: beside torch.compile
#   bench-data   ResNet-50 from a pack of JPEG, decoded by the CPU and by the GPU, and from one of pixels, as a share of
#                the step alone (synthetic); python3 needs Pillow
#   ddp          collectives and data parallel steps over two GPUs
#
# Without sections: info tests conformance bench-ops bench-optim bench-step. --only: steps whose name contains it.
# At --limit what still runs is stopped and nothing more is started; both count as failures. --skip-launched: sanitize
# takes the lists of launched kernels that an earlier run left in $OUT or in the bundle. --tool: sanitize with this one
# only. --peer eager is left out where python3 has no torch.
set -uo pipefail
export LC_ALL=C  # one order for sort and comm
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
[[ -f $here/env.sh && -f $here/tests.tsv ]] || { echo "run.sh belongs into an unpacked bundle; make one with pack.sh" >&2; exit 2; }
# shellcheck source=/dev/null
source "$here/env.sh"
out=${OUT:-$PWD/gpu-host-out}
[[ $out == /* ]] || out=$PWD/$out
jobs=4 limit=100000 only='' skip_launched='' tools='memcheck racecheck' sections=()
while (($#)); do
  case $1 in
    -j) jobs=$2; shift ;;
    --limit) limit=$2; shift ;;
    --only) only=$2; shift ;;
    --skip-launched) skip_launched=yes ;;
    --tool) tools=$2; shift ;;
    self | info | tests | conformance | sanitize | bench-ops | bench-optim | bench-step | bench-compile | bench-data | ddp)
      sections+=("$1")
      ;;
    *) sed -n '4,26p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
((${#sections[@]})) || sections=(info tests conformance bench-ops bench-optim bench-step)
mkdir -p "$out/logs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export here out work limit

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
((gpus)) || gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' 2>/dev/null | wc -l)
peer=()
python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && peer=(--peer eager)

# Tests have the paths of the build machine compiled in: where nothing is in the way, links make them right.
link_to() {  # TARGET LINK
  [[ -e $2 || -L $2 ]] || { mkdir -p "$(dirname "$2")" && ln -s "$1" "$2"; } 2>/dev/null
}
field() { awk -F'\t' -v key="$1" '$1 == key {print $2; exit}' "$here/tests.tsv"; }
link_to "$here/build" "$(field build)"
link_to "$here/source" "$(field source)"
link_to "$here/bin/mpirun" "$(field mpiexec)"

# One step: NAME SECONDS COMMAND (shell text), not beyond the limit of the whole. Leaves a log and a line
# "RESULT<tab>SECONDS<tab>NAME<tab>NOTE".
run_step() {
  local name=$1 seconds=$2 command=$3 log=$out/logs/$1.log start=$SECONDS result note='' code
  local left=$((SECONDS_AT_START + limit - $(date +%s))) clipped=''
  if ((left <= 0)); then
    printf 'NOT RUN\t0\t%s\tthe limit of %s s had passed\n' "$name" "$limit" >"$work/$name.row"
    return
  fi
  ((left >= seconds)) || { seconds=$left clipped=yes; }
  mkdir -p "$work/$name.dir"
  (cd "$work/$name.dir" && exec timeout -k 5 "$seconds" bash -c "$command") >"$log" 2>&1 </dev/null
  code=$?
  case $code in
    0) result=ok ;;
    77) result=skipped ;;
    124 | 137) result=TIMEOUT ;;
    *) result="FAIL $code" ;;
  esac
  if [[ $result != ok && $result != skipped ]]; then
    note=$(grep -aE '^\[  FAILED  \]|rror|WRONG|apex' "$log" | head -n 1)
    [[ -n $note ]] || note=$(tail -n 1 "$log")
    [[ $result != TIMEOUT || -z $clipped ]] || note="stopped at the limit of $limit s; $note"
  else
    note=$(grep -aE '^step |rows, |passed, |^rank [0-9]+, [0-9]+ steps|kernels launched|images/s|^[0-9]+ MiB .*[0-9]$|\[  PASSED  \]' "$log" | tail -n 1)
  fi
  printf '%s\t%d\t%s\t%s\n' "$result" $((SECONDS - start)) "$name" "$(tr '\t' ' ' <<<"$note" | cut -c1-230)" >"$work/$name.row"
}
export -f run_step
SECONDS_AT_START=$(date +%s)
export SECONDS_AT_START

step() { [[ -n $only && $1 != *"$only"* ]] || run_step "$@"; }

each_test() {  # prints NAME<tab>SECONDS<tab>COMMAND for the tests that these GPUs can run
  local kind name needs seconds environment command
  while IFS=$'\t' read -r kind name needs seconds environment command; do
    [[ $kind == test && $needs -le $gpus ]] || continue
    [[ -z $only || $name == *"$only"* ]] || continue
    printf '%s\t%s\tenv %s APEX_REQUIRE_CUDA=1 %s\n' "$name" "$seconds" "$environment" "$command"
  done <"$here/tests.tsv"
}
in_parallel() {  # runs lines of each_test
  xargs -r -d '\n' -P "$jobs" -I LINE bash -c 'IFS=$'"'\\t'"' read -r n s c <<<"$1"; run_step "$n" "$s" "$c"' _ LINE
}

section_self() {
  step self.help 60 'apex_bench --help && apex_bench step --device cpu --batch-size 8 --rounds 1 --steps 3'
  step self.mpi 60 'mpirun -n 2 apex_bench collectives --device cpu --most 1 --calls 5'
  step self.conformance 300 'apex_conformance --device cpu --dtype f32 "$APEX_SOURCE/tests/data/goldens"'
}
section_info() {
  step info.devices 60 'nvidia-smi -L && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv'
  step info.apex 60 'apex_info'
}
section_tests() {
  ((gpus)) || step tests.gpus 10 "echo 'apex: there is no GPU here'; exit 1"
  each_test | in_parallel
}
section_conformance() { step conformance.all 300 'apex_conformance --device all "$APEX_SOURCE/tests/data/goldens"'; }

# One step for each shard of a test program, the programs with most shards first: NAME SECONDS COMMAND as in each_test.
sanitizer_shards() {  # TOOL FILE OF each_test
  local tool=$1 name seconds command shards i gpu n=0 visible=() options=''
  # Tests provoke errors of the API, and the library checks them all by itself.
  [[ $tool != memcheck ]] || options='--report-api-errors no'
  [[ $tool != racecheck ]] || options='--kernel-name kns=apex'
  IFS=, read -r -a visible <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus > 0 ? gpus - 1 : 0)))}"
  while IFS=$'\t' read -r shards name seconds command; do
    for ((i = 0; i < shards; ++i)); do
      gpu=${visible[n++ % ${#visible[@]}]}
      printf '%s.%s.%dof%d\t1500\t%s\n' "$tool" "$name" $((i + 1)) "$shards" \
        "${command/ APEX_REQUIRE_CUDA=1 / APEX_REQUIRE_CUDA=1 $left_out GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i CUDA_VISIBLE_DEVICES=$gpu compute-sanitizer --tool $tool $options --error-exitcode 9 --print-limit 5 }"
    done
  done < <(awk -F'\t' '{n = $1 ~ /^conformance/ ? 1 : $1 ~ /^kernels\.layers/ ? 24 : $1 ~ /^(kernels\.(elem|ind|prod)|lib_f)/ ? 12 : 4
      print n "\t" $0}' "$2" |
    sort -s -k1,1nr)
}
section_sanitize() {
  local tool row start checked=$work/checked log=$out/launched kept=$here/launched name seconds command
  # Left out: more than 2^31 elements, under a sanitizer for longer than all the rest; what needs CUPTI, which excludes
  # it; nvJPEG, which stood still under CUPTI; and cases that are or say they are slow, or that launch the same kernels
  # over and over (finite differences, repeats).
  local left_out='GTEST_FILTER=-*MoreThanTwoBillion*:*ByCupti*:*GpuDecode*:*DeepChains*:*Slow*'
  left_out+=':*Differences*:*RepeatsBitForBit*:*ForEveryThreadCount*:*OnlyAfterTheConsumersWork*'
  each_test | grep -Ev 'mpirun|fault' | grep -E '^(kernels|lib|train|conformance)' >"$checked"
  # racecheck cannot run some kernels of cuDNN and cuBLASLt, looked at or not: of the products, it gets our own.
  sed -n "s/^kernels\.products\(.*\)$/kernels.own_products\1 --gtest_filter='*Direct*'/p" "$checked" >"$work/own"
  cat "$work/own" >>"$checked"
  if ! command -v compute-sanitizer >/dev/null; then
    step sanitize.tool 10 'echo "there is no compute-sanitizer on PATH"; exit 1'
    return
  fi
  printf 'tests left out: %s\n' "${left_out#*=-}" >"$out/logs/sanitize.left-out.log"
  # What these tests launch, seen once without the sanitizer: it and CUPTI's callbacks exclude each other.
  # launched/TEST.txt: kernels, a line each.
  if [[ -n $skip_launched ]]; then
    [[ -d $log ]] || cp -r "$kept" "$log" 2>/dev/null
  else
    rm -rf "$log"
    mkdir -p "$log"
    while IFS=$'\t' read -r name seconds command; do
      printf 'launched.%s\t%s\t%s\n' "$name" "$seconds" \
        "env $left_out CUDA_INJECTION64_PATH=$here/lib/libapex_probe.so APEX_KERNEL_LOG=$log/$name.txt ${command#env }"
    done <"$checked" | in_parallel
    rm -rf "$kept" && cp -r "$log" "$kept" 2>/dev/null
  fi
  for tool in $tools; do
    start=$SECONDS
    case $tool in
      racecheck) grep '^kernels' "$checked" | grep -v '^kernels\.products' ;;
      *) grep -v '^kernels\.own_products' "$checked" ;;
    esac >"$work/$tool.tests"
    cut -f1 "$work/$tool.tests" | sed "s|.*|$log/&.txt|" | xargs -r -d '\n' cat 2>/dev/null | sort -u >"$work/launched"
    comm -23 "$here/kernels.txt" "$work/launched" >"$out/kernels-not-in-$tool.txt"
    step "sanitize.coverage.$tool" 10 "all=\$(wc -l <'$here/kernels.txt') missed=\$(wc -l <'$out/kernels-not-in-$tool.txt')
      echo \"apex: \$((all - missed)) of \$all kernels launched (95% wanted)\"
      [[ \$(((all - missed) * 100)) -ge \$((all * 95)) ]]"
    sanitizer_shards "$tool" "$work/$tool.tests" | in_parallel
    # One row for all of them; a shard that was not run is not clean.
    cat "$work/$tool."*.row 2>/dev/null | sort -t $'\t' -k3 >"$out/sanitize-$tool.tsv"
    rm -f "$work/$tool."*.row
    row=$(awk -F'\t' '
      {++all}
      $1 == "ok" {++clean; next}
      $1 == "NOT RUN" {++waiting; next}
      $1 == "TIMEOUT" {++stopped; next}
      {++bad; if (bad <= 3) names = names " " $3}
      END {
        result = bad ? "FAIL" : stopped ? "TIMEOUT" : all && clean == all ? "ok" : "NOT RUN"
        printf "%s\t%d\tsanitize.%s\t%d of %d shards clean", result, seconds, tool, clean, all
        if (bad) printf ", %d failed:%s%s", bad, names, (bad > 3 ? " ..." : "")
        if (stopped) printf ", %d stopped", stopped
        if (waiting) printf ", %d not run", waiting
        print ""
      }' tool="$tool" seconds="$((SECONDS - start))" "$out/sanitize-$tool.tsv")
    printf '%s\n' "$row" >"$work/sanitize.$tool.row"
  done
}

bench() {  # NAME SECONDS COMMAND WITHOUT THE PEER: adds the JSON file, and the peer where there is one
  local flags="${4:-}"
  step "$1" "$2" "$3 $flags --json '$out/$1.json'"
}
section_bench-ops() {
  bench ops.memory 300 'apex_bench ops --device cuda --skip ResNet-50' "${peer[0]:-}"
  bench ops.convolutions 580 'apex_bench ops --device cuda --only ResNet-50' "${peer[0]:-}"
}
section_bench-optim() { bench optim 300 'apex_bench optim --device cuda' "${peer[0]:-}"; }
resnet='apex_bench step --arch resnet50'
section_bench-step() {
  local dtype
  for dtype in bf16 f16; do
    bench "step.$dtype.cold" 240 "$resnet --device cuda --dtype $dtype --plan-cache '$out/plans.$dtype'" "${peer[*]}"
    bench "step.$dtype.graph" 120 "$resnet --device cuda --dtype $dtype --cuda-graph --plan-cache '$out/plans.$dtype'"
    bench "waits.$dtype.eager" 120 "$resnet --device cuda --dtype $dtype --count-syncs 50 --plan-cache '$out/plans.$dtype'"
    bench "waits.$dtype.graph" 120 \
      "$resnet --device cuda --dtype $dtype --cuda-graph --count-syncs 50 --plan-cache '$out/plans.$dtype'"
  done
  bench step.f32.eager 240 "$resnet --device cuda --dtype f32 --batch-size 64 --plan-cache '$out/plans.f32'"
}
section_bench-compile() {
  local dtype
  for dtype in bf16 f16; do
    bench "compile.$dtype" 560 "$resnet --device cuda --dtype $dtype --cuda-graph --plan-cache '$out/plans.$dtype'" \
      '--peer compile'
  done
}
# The step alone, on one batch that stays on the device: that is "synthetic". Then whole training runs: on data made up by
# the readers, and on the same pictures as JPEG, decoded by the CPU and by the GPU, and as pixels. The pictures are 1,536
# of 256 x 256, five times over: 30 steps an epoch, of which the first fifteen of all do not count.
section_bench-data() {
  local run kind how cores=$(($(nproc) > 3 ? $(nproc) - 2 : 1)) data=$work/pictures base=$out/data.step.json
  local train="imagenet_train --arch resnet50 -b 256 -j $cores --dtype bf16 --cuda-graph --device cuda --max-steps 90"
  train+=" --epochs 3 --lr 0.01 --lr-schedule constant --checkpoint-every 0 --progress none"
  step data.pictures 100 "python3 '$here/images.py' write '$data' --count 1536 --copies 5 &&
    pack_images '$data/all' '$data/jpeg.h5' -j $cores --no-check --progress none &&
    pack_images '$data/all' '$data/decoded.h5' -j $cores --decoded --progress none && ls -l '$data'"
  step data.step 150 \
    "$resnet -b 256 --classes 32 --device cuda --dtype bf16 --cuda-graph --plan-cache '$out/plans.bf16' --json '$base'"
  for run in made-up: jpeg: jpeg:gpu decoded:; do
    kind=${run%:*} how=${run#*:}
    local name=data.$kind${how:+-$how} from="'$data/$kind.h5'" gpu=''
    [[ $kind != made-up ]] || from='synthetic --synthetic-size 7680 --synthetic-classes 32'
    [[ $how != gpu ]] || gpu="apex_info --no-mpi | grep -q nvJPEG || { echo 'this build has no nvJPEG'; exit 77; }; "
    step "$name" 120 "$gpu$train ${how:+--decode $how} --plan-cache '$out/plans.bf16' \
      --checkpoint-dir '$work/runs.$name' $from &&
      cp '$work/runs.$name/metrics.jsonl' '$out/$name.jsonl' &&
      python3 '$here/images.py' rate '$out/$name.jsonl' '$base'"
  done
  rm -rf "$data"
}
section_ddp() {
  if ((gpus < 2)); then
    step ddp.gpus 10 "echo 'apex: $gpus GPUs here, two are needed'; exit 1"
    return
  fi
  bench ddp.collectives 200 'mpirun -n 2 apex_bench collectives --device cuda'
  bench ddp.one 200 "$resnet --device cuda --dtype bf16 --cuda-graph --plan-cache '$out/plans.bf16'"
  bench ddp.two.eager 200 "mpirun -n 2 $resnet --device cuda --dtype bf16 --plan-cache '$out/plans.bf16'" "${peer[*]}"
  bench ddp.two.graph 200 "mpirun -n 2 $resnet --device cuda --dtype bf16 --cuda-graph --plan-cache '$out/plans.bf16'"
  bench ddp.waits 200 \
    "mpirun -n 2 $resnet --device cuda --dtype bf16 --cuda-graph --count-syncs 50 --plan-cache '$out/plans.bf16'"
}

for section in "${sections[@]}"; do "section_$section"; done

# The table: what passed in numbers for the tests, everything else line by line.
cat "$work"/*.row 2>/dev/null | sort -t $'\t' -k3 >"$out/results.tsv"
total=$(wc -l <"$out/results.tsv")
bad=$(grep -cvE '^(ok|skipped)' "$out/results.tsv")
skipped=$(grep -c '^skipped' "$out/results.tsv")
printf '\n%-9s %6s  %-34s %s\n' result s step note
awk -F'\t' '$1 != "ok" || $3 ~ /^(self|info|ops|optim|step|waits|compile|data|ddp|sanitize\.|conformance\.all)/' "$out/results.tsv" |
  sort -t $'\t' -k1,1r | head -n 80 |
  awk -F'\t' '{printf "%-9s %6d  %-34s %s\n", $1, $2, $3, $4}'
printf '%d steps, %d passed, %d skipped, %d not; %d GPUs; logs in %s\n' "$total" $((total - bad - skipped)) "$skipped" \
  "$bad" "$gpus" "$out"
[[ $bad -eq 0 && $total -gt 0 ]]
