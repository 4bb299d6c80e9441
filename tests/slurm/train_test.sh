#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# train_test.sh ROOT IMAGENET_TRAIN: imagenet_train on a real Slurm of two virtual nodes: srun over both; and each batch
# script signalled in the middle, requeued, and brought to the same bits as a run that nobody disturbed.
set -uo pipefail
if [[ $EUID -ne 0 ]]; then
  echo "the virtual nodes need root; skipped"
  exit 77
fi
root=$1
export IMAGENET_TRAIN=$2
folder=$(mktemp -d /tmp/apex-slurm-XXXXXX)
cluster=$root/tests/slurm/cluster.sh
failures=0
fault() {
  printf '%s\n' "$*"
  failures=$((failures + 1))
}

finish() {
  "$cluster" down "$folder/cluster" || fault "the cluster did not come down"
  rm -rf "$folder"
}
trap finish EXIT
"$cluster" up "$folder/cluster" 2 2 || exit 1
export SLURM_CONF=$folder/cluster/slurm.conf
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

recipe=(synthetic --synthetic-size 4096 --arch resnet20 --image-size 32 --batch-size 16 --max-steps 150 --workers 1
  --print-freq 10 --timeout 60)

# ---- srun over two nodes: the reference ------------------------------------------------------------------------------
(cd "$folder" && timeout 120 srun --mpi=pmix -N2 -n2 --ntasks-per-node=1 "$IMAGENET_TRAIN" "${recipe[@]}" \
  --checkpoint-dir unbroken >unbroken.log 2>&1) || fault "srun: $(tail -n 20 "$folder/unbroken.log")"
[[ -s $folder/unbroken/LATEST ]] || fault "srun left no checkpoint: $(tail -n 20 "$folder/unbroken.log")"

same_state() {  # NAME FOLDER: its newest checkpoint against the reference's
  local name=$1 a b group
  a=$folder/unbroken/$(cat "$folder/unbroken/LATEST")
  b=$2/$(cat "$2/LATEST")
  [[ ${a##*/} == "${b##*/}" ]] || fault "$name ended with ${b##*/}, the undisturbed run with ${a##*/}"
  for group in model optimizer scheduler sampler rng; do
    h5diff "$a" "$b" "/$group" >"$folder/diff" 2>&1 || fault "$name: /$group differs: $(head -n 5 "$folder/diff")"
  done
}

wait_for() {  # SECONDS WHAT COMMAND...
  local limit=$1 what=$2 i
  shift 2
  for ((i = 0; i < limit * 10; i++)); do
    "$@" && return
    sleep 0.1
  done
  fault "waited $limit s in vain for: $what"
  return 1
}
steps_done() { [[ -f $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge $2 ]]; }
no_step_of() { ! pgrep -f "slurmstepd: \\[$1\\." >/dev/null; }
in_state() { [[ " $2 " == *" $(scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p') "* ]]; }

# ---- tasks that cannot find each other -------------------------------------------------------------------------------
(cd "$folder" && timeout 60 srun --mpi=none -N2 -n2 "$IMAGENET_TRAIN" "${recipe[@]}" --checkpoint-dir apart \
  >apart.log 2>&1)
code=$?
[[ $code -eq 3 ]] || fault "srun --mpi=none ended with $code instead of 3: $(tail -n 20 "$folder/apart.log")"
grep -q 'srun --mpi=pmix' "$folder/apart.log" || fault "srun --mpi=none: no hint: $(tail -n 20 "$folder/apart.log")"
[[ ! -e $folder/apart ]] || fault "srun --mpi=none: somebody trained alone"

# ---- a batch script, signalled in the middle ---------------------------------------------------------------------------
disturbed() {  # SCRIPT NODES SCANCEL-OPTION...
  local script=$1 nodes=$2 job name work
  shift 2
  name=${script%.sbatch}
  work=$folder/$name
  mkdir "$work"
  job=$(cd "$work" && sbatch --parsable -N "$nodes" --ntasks-per-node=$((2 / nodes)) --cpus-per-task=1 --time=10 \
    "$root/slurm/$script" "${recipe[@]}" --checkpoint-dir run) || return
  wait_for 60 "$name: some steps" steps_done "$work/run" 10 || {
    tail -n 20 "$work"/*.log
    return
  }
  scancel "$@" --signal=USR1 "$job"
  wait_for 60 "$name: back in the queue" in_state "$job" PENDING || {
    tail -n 20 "$work"/*.log
    return
  }
  # A real queue waits two minutes here; without that the end of the first run would be taken for that of the second.
  wait_for 30 "$name: the end of the first run" no_step_of "$job"
  sleep 2
  scontrol update "JobId=$job" StartTime=now
  wait_for 120 "$name: the end" in_state "$job" 'COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL'
  in_state "$job" COMPLETED || fault "$name did not complete: $(tail -n 20 "$work"/*.log)"
  grep -q "requeueing job $job" "$work"/*.log || fault "$name: the log of the first run is gone"
  scontrol show job "$job" | grep -q 'Restarts=1' || fault "$name was not restarted once"
  same_state "$name" "$work/run"
}
disturbed imagenet_train.sbatch 2
disturbed imagenet_train_mpirun.sbatch 1 --batch

printf 'slurm: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
