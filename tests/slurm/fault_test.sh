#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# fault_test.sh ROOT IMAGENET_TRAIN CASE: what a real cluster does to a job (the fault matrix's numbers in brackets):
#   limit       its time is over soon: signalled by Slurm itself, requeued, same bits (10)
#   preempt     a job of higher priority takes its nodes: it goes on afterwards, same bits (11)
#   cancel      cancelled while a rank hangs: gone after KillWait, and the checkpoints are whole (12)
#   node        the daemon of a node dies: requeued, the rank that was left there ends by itself, same bits (13)
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
slurm_begin "$1" "$2" 2 4
script=imagenet_train.sbatch
ranks_of() { pgrep -f "^$program .*--checkpoint-dir run$"; }
no_ranks() { ! ranks_of >/dev/null; }

case $3 in
  limit)
    reference
    slow_first_run 500  # makes 75 s, of which it has 60
    submit limit $script 2 --time=1 --signal=USR1@30 && back_in_queue limit 90 && {
      scontrol update "JobId=$job" TimeLimit=10
      goes_on limit
      grep -q "requeueing job $job" "$work"/*.log || fault "the job was not requeued by its script"
      grep -q 'DUE TO TIME LIMIT' "$work"/*.log && fault "Slurm ended the job at its limit"
    }
    ;;
  preempt)
    reference
    slow_first_run 300
    submit preempt $script 2 && {
      urgent=$(cd "$folder" && sbatch --parsable -p urgent -N2 --ntasks-per-node=4 --time=1 --output=urgent.log --wrap 'sleep 3')
      back_in_queue preempt && {
        wait_for 60 "the urgent job" in_state "$urgent" COMPLETED
        # Not only requeued: stopped in order, with a checkpoint of the step it was at.
        ls "$work"/run/step_*.h5 >/dev/null 2>&1 || fault "the preempted job left no checkpoint: $(tail -n 20 "$work"/*.log)"
        goes_on preempt
      }
    }
    ;;
  cancel)
    slow_first_run 300
    submit cancel $script 2 && {
      wait_for 60 "a checkpoint" test -s "$work/run/LATEST"
      mapfile -t ranks < <(ranks_of)
      [[ ${#ranks[@]} -eq 4 ]] || fault "${#ranks[@]} ranks run, not 4"
      kill -STOP "${ranks[-1]}"
      start=$SECONDS
      scancel "$job"
      wait_for 60 "the end of the cancelled job" in_state "$job" CANCELLED
      wait_for 30 "the end of its ranks" no_ranks
      ((SECONDS - start < 40)) || fault "the end took $((SECONDS - start)) s, KillWait is 5"
      "${program%/*}/apex_ckpt" verify "$work/run" >"$folder/verify" 2>&1 || fault "a damaged checkpoint: $(cat "$folder/verify")"
    }
    ;;
  node)
    reference
    slow_first_run 600
    submit node $script 2 && {
      kill -KILL "$(cat "$folder/cluster/pid/slurmd.n2")"
      back_in_queue node 120 && {
        wait_for 90 "the end of the rank left alone" no_ranks
        "$cluster" node "$folder/cluster" 2
        goes_on node
      }
    }
    ;;
  *)
    echo "no case '$3'"
    exit 2
    ;;
esac
slurm_result "$3"
