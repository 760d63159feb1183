#!/bin/bash
# A sweep as a Slurm job: Ray's head on the first node, a worker on each other one, the sweep's driver beside the head.
#
#   export FEDRAY_STORAGE=/shared/me/fedray MLFLOW_TRACKING_URI=http://mlflow.example.org:5000
#   sbatch --nodes=4 --gpus-per-node=4 sweeps/clusters/slurm.sh sweeps/fedtoga/table1.yaml
#
# Submit from the repository's root, on a file system that all nodes see. Words after the file go to `fedray sweep`.
#
#SBATCH --job-name=fedray
#SBATCH --output=fedray-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
# Five minutes before the time limit SIGTERM comes, to this script alone: the sweep closes its runs, and the job queues
# again, to go on from the checkpoints. On preemption, too, where the site sets PreemptParameters=send_user_signal.
#SBATCH --signal=B:TERM@300
set -euo pipefail

bin=$PWD/.venv/bin
: "${FEDRAY_STORAGE:?a folder that all nodes see, for checkpoints}"
: "${MLFLOW_TRACKING_URI:?the MLflow server, or a SQLite file that outlives the job}"
[[ $# -gt 0 ]] || { echo "a sweep's YAML file is required" >&2; exit 2; }

# Ports and Ray's folder are the job's own, since another job may share a node; so is the token, without which nobody
# else who reaches the ports could run code here.
port=$((20000 + SLURM_JOB_ID % 10000))
ray_folder=/tmp/ray-$SLURM_JOB_ID
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$FEDRAY_STORAGE/tokens/$SLURM_JOB_ID
(umask 077 && mkdir -p "$FEDRAY_STORAGE/tokens" &&
    "$bin/python" -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
read -r ip _ < <(hostname --ip-address)
address=$ip:$port

# again: queue the job again where another try may do better: after the signal always, else a limited number of times.
again() {
    if [[ -n $told ]] || ((${SLURM_RESTART_COUNT:-0} < ${FEDRAY_RESTARTS:-10})); then
        scontrol requeue "$SLURM_JOB_ID" || true  # refused where the job has been cancelled
    fi
}
told='' driver='' killer=''
stop() {  # the sweep has 200 s; what is queued after the time limit is lost
    told=yes
    if [[ -n $driver ]]; then
        kill -TERM "$driver" 2>/dev/null || true
        (sleep 200 && kill -KILL "$driver") 2>/dev/null &
        killer=$!
    fi
}
trap stop TERM
nodes=()
leave() {  # called by the trap below
    if ((${#nodes[@]})); then kill -TERM "${nodes[@]}" 2>/dev/null || true; wait "${nodes[@]}" || true; fi
    rm -f "$RAY_AUTH_TOKEN_PATH"
    if [[ ${code:-} == 0 ]]; then rm -rf "$ray_folder"; fi  # else its logs may be wanted
}
trap leave EXIT

# start FIRST COUNT OPTION...: Ray on nodes FIRST, FIRST + 1, ... of the allocation
start() {
    srun --relative="$1" --nodes="$2" --ntasks="$2" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        "$bin/ray" start --block --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="$ray_folder" --disable-usage-stats \
        "${@:3}" &
    nodes+=($!)
}
start 0 1 --head --node-ip-address="$ip" --port="$port" --ray-client-server-port=$((port + 10000)) \
    --include-dashboard=false
until "$bin/ray" health-check --address "$address" >/dev/null 2>&1; do
    if [[ -n $told ]] || ((SECONDS > 300)); then echo "Ray's head did not start at $address" >&2; again; exit 1; fi
    sleep 1
done
if ((SLURM_NNODES > 1)); then start 1 $((SLURM_NNODES - 1)) --address="$address"; fi
# Nodes that come late are used all the same; waiting lets the sweep say at once what does not fit.
"$bin/python" - "$address" "$SLURM_NNODES" <<'PY' || echo "not all nodes joined within 2 minutes; going on without" >&2
import sys
import time

import ray

started = time.monotonic()

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)
    if time.monotonic() - started > 120:
        sys.exit(1)
PY

code=143
if [[ -z $told ]]; then
    "$bin/fedray" sweep "$@" --address "$address" &
    driver=$!
    code=0
    wait "$driver" || code=$?
    if [[ -n $told ]]; then code=0; wait "$driver" || code=$?; fi  # the first wait ended with the signal
fi
[[ -z $killer ]] || kill "$killer" 2>/dev/null || true
# 0: all cells have an outcome. 2: a mistake in the call, which another try repeats. Anything else may go better: cells
# were interrupted (130) or have failed (1), the driver was killed (137), Ray's head was lost.
if ((code != 0 && code != 2)); then again; fi
exit "$code"
