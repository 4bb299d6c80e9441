# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Shared by the tests on a private Slurm: the cluster, a short training whose end is compared bit by bit, and waiting.
#   slurm_begin ROOT IMAGENET_TRAIN NODES CPUS     then $folder is ours, and the cluster goes when the script ends

failures=0
fault() {
  printf '%s\n' "$*"
  failures=$((failures + 1))
}

slurm_begin() {
  root=$1
  program=$2
  if [[ $EUID -ne 0 ]]; then
    echo "the virtual nodes need root; skipped"
    exit 77
  fi
  export IMAGENET_TRAIN=$program
  folder=$(mktemp -d /tmp/apex-slurm-XXXXXX)
  cluster=$root/tests/slurm/cluster.sh
  trap slurm_end EXIT
  "$cluster" up "$folder/cluster" "$3" "$4" || exit 1
  export SLURM_CONF=$folder/cluster/slurm.conf
  export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

slurm_end() {
  "$cluster" down "$folder/cluster" || fault "the cluster did not come down"
  rm -rf "$folder"
}

slurm_result() {
  printf '%s: %d failures\n' "$1" "$failures"
  [[ $failures -eq 0 ]]
}

recipe=(synthetic --synthetic-size 4096 --arch resnet20 --image-size 32 --batch-size 8 --max-steps 150 --workers 1
  --print-freq 10 --checkpoint-every 20 --timeout 60)

# A run of 4 ranks over 2 nodes that nobody disturbs.
reference() {
  (cd "$folder" && timeout 240 srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 "$program" "${recipe[@]}" \
    --expect-ranks 4 --checkpoint-dir unbroken >unbroken.log 2>&1) || fault "srun: $(tail -n 20 "$folder/unbroken.log")"
  [[ -s $folder/unbroken/LATEST ]] || fault "srun left no checkpoint: $(tail -n 20 "$folder/unbroken.log")"
}

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
  local limit=$1 what=$2 end=$((SECONDS + $1))
  shift 2
  while ((SECONDS < end)); do
    "$@" && return
    sleep 0.1
  done
  fault "waited $limit s in vain for: $what"
  return 1
}
steps_done() { [[ -f $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge $2 ]]; }
no_step_of() { ! pgrep -f "slurmstepd: \\[$1\\." >/dev/null; }
in_state() { [[ " $2 " == *" $(scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p') "* ]]; }

# submit NAME SCRIPT NODES [SBATCH OPTION...]: a job of 4 ranks on 1 or 2 nodes, in $folder/NAME, checkpoints in `run`;
# sets $job and $work, and waits until it has made some steps.
submit() {
  local name=$1 script=$2 nodes=$3
  shift 3
  work=$folder/$name
  mkdir "$work"
  job=$(cd "$work" && sbatch --parsable -N "$nodes" --ntasks-per-node=$((4 / nodes)) --cpus-per-task=1 --time=10 "$@" \
    "$root/slurm/$script" "${recipe[@]}" --checkpoint-dir run) || {
    fault "$name: sbatch refused it"
    return 1
  }
  wait_for 60 "$name: some steps" steps_done "$work/run" 5 && return
  tail -n 20 "$work"/*.log
  return 1
}

# back_in_queue NAME: the job was stopped; waits until it is in the queue again and nothing of its first run is left.
back_in_queue() {
  wait_for "${2:-60}" "$1: back in the queue" in_state "$job" PENDING || {
    tail -n 20 "$work"/*.log
    return 1
  }
  wait_for 60 "$1: the end of the first run" no_step_of "$job"
}

# Whether the last start ended in a crash before the program's first line.
start_crashed() {
  tac "$work"/*.log | sed '/requeueing job/,$d' >"$work/last_start"
  grep -q 'Signal: Segmentation fault' "$work/last_start" && ! grep -q '^=> ' "$work/last_start"
}

# goes_on NAME: the queued job runs again, ends well and with the bits of the undisturbed run.
goes_on() {
  # A real queue waits two minutes here; without that the end of the first run would be taken for that of the second.
  sleep 2
  scontrol update "JobId=$job" StartTime=now
  wait_for 240 "$1: the end" in_state "$job" 'COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL PREEMPTED'
  local restarts=1
  # Open MPI 4.1.4 can crash within MPI_Init on nodes that share an address, as these do, when the machine is busy. Such a
  # start tells nothing of the program, which has not said a word: it is repeated, once.
  if in_state "$job" FAILED && start_crashed; then
    echo "$1: Open MPI crashed within MPI_Init; started once more" >&2
    restarts=2
    scontrol requeue "$job"
    back_in_queue "$1" || return
    sleep 2
    scontrol update "JobId=$job" StartTime=now
    wait_for 240 "$1: the end" in_state "$job" 'COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL PREEMPTED'
  fi
  in_state "$job" COMPLETED || fault "$1 did not complete: $(tail -n 20 "$work"/*.log)"
  scontrol show job "$job" | grep -q "Restarts=$restarts" || fault "$1 was not restarted $restarts times"
  same_state "$1" "$work/run"
}

# From here on the first run of each job is slow: what is to happen to it happens in its middle on any machine. The
# second goes at full speed.
slow_first_run() {  # MILLISECONDS more for each batch
  cat >"$folder/slow_first" <<X
#!/bin/bash
[[ \${SLURM_RESTART_COUNT:-0} -gt 0 ]] || export APEX_READ_DELAY_MS=$1
exec "$program" "\$@"
X
  chmod +x "$folder/slow_first"
  export IMAGENET_TRAIN=$folder/slow_first
}
