#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# train_test.sh ROOT IMAGENET_TRAIN: imagenet_train on a real Slurm of two virtual nodes: srun over both; each batch
# script signalled in the middle, requeued, and brought to the same bits as a run that nobody disturbed; and launches
# that fall apart into single ranks.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
slurm_begin "$1" "$2" 2 4
reference

# ---- a launch without a way for the ranks to meet (fault matrix 14) -----------------------------------------------------
for mpi in none pmi2; do
  start=$SECONDS
  (cd "$folder" && timeout 60 srun --mpi=$mpi -N2 -n4 "$program" "${recipe[@]}" --checkpoint-dir "apart-$mpi" >apart.log 2>&1)
  status=$?
  [[ $status -ne 0 && $status -ne 124 ]] || fault "srun --mpi=$mpi: four single ranks trained, exit code $status"
  ((SECONDS - start < 30)) || fault "srun --mpi=$mpi: noticed after $((SECONDS - start)) s"
  grep -qi 'pmix' "$folder/apart.log" || fault "srun --mpi=$mpi: no advice in: $(tail -n 20 "$folder/apart.log")"
  [[ ! -e $folder/apart-$mpi/LATEST ]] || fault "srun --mpi=$mpi: a rank alone wrote a checkpoint"
done
grep -q 'Slurm started 4 tasks (SLURM_STEP_NUM_TASKS)' <(cd "$folder" && srun --mpi=none -n4 "$program" "${recipe[@]}" 2>&1) ||
  fault "srun --mpi=none: the line does not say what Slurm started"
(cd "$folder" && timeout 60 srun --mpi=pmix -n2 "$program" "${recipe[@]}" --expect-ranks 4 >apart.log 2>&1) &&
  fault "2 ranks where 4 were expected"
grep -q '4 ranks were expected' "$folder/apart.log" || fault "--expect-ranks said: $(tail -n 5 "$folder/apart.log")"

# ---- tasks that cannot find each other -------------------------------------------------------------------------------
(cd "$folder" && timeout 60 srun --mpi=none -N2 -n2 "$IMAGENET_TRAIN" "${recipe[@]}" --checkpoint-dir apart \
  >apart.log 2>&1)
code=$?
[[ $code -eq 3 ]] || fault "srun --mpi=none ended with $code instead of 3: $(tail -n 20 "$folder/apart.log")"
grep -q 'srun --mpi=pmix' "$folder/apart.log" || fault "srun --mpi=none: no hint: $(tail -n 20 "$folder/apart.log")"
[[ ! -e $folder/apart ]] || fault "srun --mpi=none: somebody trained alone"

# ---- a batch script, signalled in the middle ---------------------------------------------------------------------------
disturbed() {  # SCRIPT NODES SCANCEL-OPTION...
  local name=${1%.sbatch}
  submit "$name" "$1" "$2" || return
  shift 2
  scancel "$@" --signal=USR1 "$job"
  back_in_queue "$name" || return
  goes_on "$name"
  grep -q "requeueing job $job" "$work"/*.log || fault "$name: the log of the first run is gone"
}
disturbed imagenet_train.sbatch 2
disturbed imagenet_train_mpirun.sbatch 1 --batch

slurm_result train
