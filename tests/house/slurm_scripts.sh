#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# slurm_scripts.sh ROOT: the batch scripts, with stand-ins for srun, mpirun and scontrol: what they pass on, and what
# they make of the exit code. (The label slurm has the tests on a real Slurm.)
set -uo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
fault() {
  printf '%s\n' "$*"
  failures=$((failures + 1))
}

mkdir "$folder/bin"
cat >"$folder/bin/srun" <<'X'
#!/bin/bash
echo "srun $*" >>"$LOG"
echo "resume=$APEX_OPT_RESUME ranks=$APEX_OPT_EXPECT_RANKS cpus=${SRUN_CPUS_PER_TASK:-}" >>"$LOG"
exit "$CODE"
X
cat >"$folder/bin/mpirun" <<'X'
#!/bin/bash
echo "mpirun $*" >>"$LOG"
echo "resume=$APEX_OPT_RESUME ranks=$APEX_OPT_EXPECT_RANKS cpus=" >>"$LOG"
[[ ${WAIT:-0} == 1 ]] || exit "$CODE"
trap 'echo signalled >>"$LOG"; sleep 0.3; exit "$CODE"' USR1
touch "$LOG.ready"
for ((i = 0; i < 200; i++)); do sleep 0.05; done
exit 1
X
cat >"$folder/bin/scontrol" <<'X'
#!/bin/bash
echo "scontrol $*" >>"$LOG"
exit "${SCONTROL:-0}"
X
chmod +x "$folder"/bin/*

run() {  # SCRIPT ARGUMENT..., with CODE and others in the environment: sets $status and $log
  rm -f "$folder"/log*
  PATH=$folder/bin:$PATH LOG=$folder/log SLURM_JOB_ID=17 SLURM_NTASKS=4 SLURM_CPUS_PER_TASK=3 \
    bash "$root/slurm/$1" '/data/image net' --arch resnet50 "${@:2}" >"$folder/out" 2>&1
  status=$?
  log=$(cat "$folder/log")
}
wants() { [[ $log == *"$1"* ]] || fault "$script: wanted '$1' in: $log"; }
refuses() { [[ $log != *"$1"* ]] || fault "$script: did not want '$1' in: $log"; }
ends_with() { [[ $status -eq $1 ]] || fault "$script: ended with $status, not $1"; }

for script in imagenet_train.sbatch imagenet_train_mpirun.sbatch; do
  bash -n "$root/slurm/$script" || fault "$script: syntax"
  for option in open-mode=append requeue; do
    grep -q "^#SBATCH --$option" "$root/slurm/$script" || fault "$script lacks #SBATCH --$option"
  done
  grep -qE '^#SBATCH --signal=(B:)?USR1@[0-9]+' "$root/slurm/$script" || fault "$script asks for no signal"

  CODE=0 run "$script"
  ends_with 0
  wants 'resume=auto ranks=4'
  wants 'imagenet_train /data/image net --arch resnet50'
  refuses scontrol
  CODE=99 run "$script"
  ends_with 0
  wants 'scontrol requeue 17'
  CODE=99 SCONTROL=1 run "$script"
  ends_with 99
  CODE=7 run "$script"
  ends_with 7
  refuses scontrol
  CODE=137 run "$script"
  ends_with 137
  CODE=50 APEX_OPT_REQUEUE_EXIT_CODE=50 APEX_OPT_RESUME=/old IMAGENET_TRAIN=/opt/train run "$script"
  wants 'scontrol requeue 17'
  wants 'resume=/old'
  wants '/opt/train /data'
  # An option comes before the environment, however it is written.
  for words in '--requeue-exit-code 51' '--requeue-exit-code=51' '--requeue_exit_code 51' '--requeue-exit_code=51 -b 9'; do
    # shellcheck disable=SC2086
    CODE=51 APEX_OPT_REQUEUE_EXIT_CODE=50 run "$script" $words
    ends_with 0
    wants 'scontrol requeue 17'
    # shellcheck disable=SC2086
    CODE=50 APEX_OPT_REQUEUE_EXIT_CODE=50 run "$script" $words
    ends_with 50
    refuses scontrol
  done
  CODE=2 run "$script" --requeue-exit-code
  ends_with 2
  CODE=2 run "$script" --requeue-exit-code many
  ends_with 2
  refuses scontrol
done
script=imagenet_train.sbatch
CODE=0 run "$script"
wants 'srun --mpi=pmix'
wants 'cpus=3'

# The signal reaches the script; it must reach mpirun, and mpirun's own end must decide.
script=imagenet_train_mpirun.sbatch
rm -f "$folder"/log*
PATH=$folder/bin:$PATH LOG=$folder/log SLURM_JOB_ID=17 SLURM_NTASKS=4 WAIT=1 CODE=99 \
  bash "$root/slurm/$script" /data >"$folder/out" 2>&1 &
batch=$!
for ((i = 0; i < 100; i++)); do
  [[ -e $folder/log.ready ]] && break
  sleep 0.05
done
kill -USR1 "$batch"
wait "$batch"
status=$?
log=$(cat "$folder/log")
ends_with 0
wants signalled
wants 'scontrol requeue 17'

printf 'slurm scripts: %d failures\n' "$failures"
[[ $failures -eq 0 ]]
