#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# A Slurm cluster of its own on this machine: virtual nodes that are slurmd processes, with their own keys and ports.
# A Slurm that is already here is not touched. Needs root (for hostnames of the nodes) and Debian's slurmctld, slurmd,
# slurm-client and munge.
#
#   cluster.sh up DIR NODES CPUS      then: export SLURM_CONF=DIR/slurm.conf
#   cluster.sh node DIR NUMBER        starts the daemon of a node anew
#   cluster.sh down DIR               ends what `up` started, by its pid files
#
# Jobs of the partition `urgent` take the nodes of those in `all`, which are told by SIGTERM and have 20 s.
set -euo pipefail

command=$1 dir=$2
export SLURM_CONF=$dir/slurm.conf

write_configuration() {  # NODES CPUS
  local nodes=$1 cpus=$2 host base i
  host=$(hostname)
  base=$((20000 + $$ % 20000))
  {
    cat <<CONF
ClusterName=apex
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
SlurmdUser=root
# Ranks are known by job number: those of two clusters on one machine must not be taken for each other.
FirstJobId=$base
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/pid/slurmctld
SlurmdPidFile=$dir/pid/slurmd.%n
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd.%n
TaskProlog=$dir/task_prolog
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
MessageTimeout=20
SlurmdTimeout=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
# A node may have more cores than the machine.
SlurmdParameters=config_overrides
# Each node needs a place of its own for PMIx, or two of them on one machine get in each other's way.
TmpFS=$dir/tmp/%n
CONF
    for ((i = 1; i <= nodes; i++)); do
      echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((base + i)) CPUs=$cpus Boards=1" \
        "SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN"
    done
    echo "PartitionName=all Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20"
    echo "PartitionName=urgent Nodes=n[1-$nodes] MaxTime=INFINITE State=UP PriorityTier=10"
  } >"$SLURM_CONF"
  # The task's environment on machines that run more ranks than they have cores, all on the loopback interface.
  cat >"$dir/task_prolog" <<'PROLOG'
#!/bin/sh
echo export OMPI_MCA_pml=ob1
echo export OMPI_MCA_btl_tcp_if_include=lo
echo export OMPI_MCA_mpi_yield_when_idle=1
echo export OMPI_MCA_rmaps_base_oversubscribe=1
PROLOG
  chmod +x "$dir/task_prolog"
}

port() { sed -n 's/^SlurmctldPort=//p' "$SLURM_CONF"; }

start_node() {  # NUMBER
  # A hostname for each, and not one of another cluster here: Open MPI names shared memory by hostname and job.
  unshare --uts bash -c "hostname n$1-$(port) && exec slurmd -N n$1"
}

up() {  # NODES CPUS
  local nodes=$1 i
  mkdir -p "$dir"/{state,spool,pid,log,tmp,munge}
  chmod 755 "$dir"
  chmod 711 "$dir/munge"
  write_configuration "$@"
  head -c 512 /dev/urandom >"$dir/munge/key"
  chmod 400 "$dir/munge/key"
  munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/pid/munged" \
    --log-file="$dir/log/munged" --seed-file="$dir/munge/seed"
  slurmctld
  for ((i = 1; i <= nodes; i++)); do
    mkdir -p "$dir/spool/n$i" "$dir/tmp/n$i"
    start_node "$i"
  done
  for ((i = 0; i < 200; i++)); do
    [[ $(sinfo -h -p all -t idle -o %D 2>/dev/null) == "$nodes" ]] && return
    sleep 0.1
  done
  echo "the nodes did not come up:" >&2
  tail -n 5 "$dir"/log/* >&2
  return 1
}

running() {  # pids of the cluster's daemons that still live
  local file pid
  for file in "$dir"/pid/*; do
    [[ -s $file ]] || continue
    pid=$(<"$file")
    [[ -d /proc/$pid && $(awk '{print $3}' "/proc/$pid/stat" 2>/dev/null) != Z ]] && echo "$pid"
  done
  return 0
}

down() {
  local i pids
  scancel --quiet --full --user=root 2>/dev/null || true
  for ((i = 0; i < 100; i++)); do
    [[ -z $(squeue -h -t RUNNING,COMPLETING 2>/dev/null) ]] && break
    sleep 0.1
  done
  for ((i = 0; i < 100; i++)); do
    mapfile -t pids < <(running)
    if [[ ${#pids[@]} -eq 0 ]]; then
      rm -f /dev/shm/vader_segment.n*-"$(port)".*  # of ranks that were killed
      return
    fi
    ((i % 50 == 0)) && kill -TERM "${pids[@]}" 2>/dev/null
    sleep 0.1
  done
  echo "still running: ${pids[*]}" >&2
  return 1
}

case $command in
  up) up "$3" "$4" ;;
  node) start_node "$3" ;;
  down) down ;;
  *)
    echo "usage: cluster.sh up DIR NODES CPUS | node DIR NUMBER | down DIR" >&2
    exit 2
    ;;
esac
