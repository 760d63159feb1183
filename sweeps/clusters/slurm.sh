#!/bin/bash
# A sweep as a Slurm job: Ray's head and the sweep's driver on the first node, a worker on each of the others.
#
#   fedray list clusters slurm.sh > slurm.sh
#   export FEDRAY_STORAGE=/shared/me/fedray MLFLOW_TRACKING_URI=http://mlflow.example.org:5000
#   export FEDRAY_DATA=/shared/data    # `fedray data fetch` has put the data sets there
#   sbatch --nodes=4 --gpus-per-node=4 --time=12:00:00 slurm.sh sweep.yaml
#
# Submit with fedray's environment activated, or next to its .venv, on a file system that all nodes see. Arguments after
# the file, or a name of `fedray list sweeps`, go to `fedray sweep`. `fedray sweep FILE --dry-run --nodes 4 ...` prints this
# line with your numbers. Options of sbatch before slurm.sh replace those below; your site's, such as --account=... and
# --partition=..., go there, too.
#
#SBATCH --job-name=fedray
#SBATCH --output=fedray-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
# Five minutes before the time limit Slurm sends SIGTERM to this script only: the sweep closes its runs, and the job is
# requeued and resumes from the checkpoints. Also on preemption, if the site sets PreemptParameters=send_user_signal.
#SBATCH --signal=B:TERM@300
set -euo pipefail

bin=$(dirname "$(command -v fedray || echo "$PWD/.venv/bin/fedray")")
[[ -x $bin/fedray ]] || { echo "fedray is neither on PATH nor in $bin; activate its environment" >&2; exit 2; }
: "${FEDRAY_STORAGE:?a folder that all nodes see, for checkpoints}"
: "${MLFLOW_TRACKING_URI:?the MLflow server, or a SQLite file that outlives the job}"
[[ $# -gt 0 ]] || { echo "a sweep's YAML file is required" >&2; exit 2; }

# Ports and Ray's folder belong to the job, since another job may share a node; so does the token, without which others
# who reach the ports cannot run code here.
port=$((20000 + SLURM_JOB_ID % 10000))
ray_folder=/tmp/ray-$SLURM_JOB_ID
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$FEDRAY_STORAGE/tokens/$SLURM_JOB_ID
(umask 077 && mkdir -p "$FEDRAY_STORAGE/tokens" &&
    "$bin/python" -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
read -r ip _ < <(hostname --ip-address)
address=$ip:$port

# again: requeue the job if a retry may help: always after the signal, otherwise a limited number of times.
again() {
    if [[ -n $told ]] || ((${SLURM_RESTART_COUNT:-0} < ${FEDRAY_RESTARTS:-10})); then
        scontrol requeue "$SLURM_JOB_ID" || true  # refused if the job has been cancelled
    fi
}
told='' driver='' killer=''
stop() {  # the sweep has 200 s; a requeue after the time limit is lost
    told=yes
    if [[ -n $driver ]]; then
        kill -TERM "$driver" 2>/dev/null || true
        (sleep 200 && kill -KILL "$driver") &>/dev/null &  # it may outlive the job, whose output it must not hold
        killer=$!
    fi
}
trap stop TERM
nodes=()
leave() {  # called by the trap below
    if ((${#nodes[@]})); then kill -TERM "${nodes[@]}" 2>/dev/null || true; wait "${nodes[@]}" || true; fi
    rm -f "$RAY_AUTH_TOKEN_PATH"
    if [[ ${code:-} == 0 ]]; then rm -rf "$ray_folder"; fi  # otherwise its logs may be needed
}
trap leave EXIT

# start FIRST COUNT OPTION...: Ray on nodes FIRST, FIRST + 1, ... of the allocation
start() {
    srun --relative="$1" --nodes="$2" --ntasks="$2" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        "$bin/ray" start --block --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="$ray_folder" --disable-usage-stats \
        "${@:3}" &
    nodes+=($!)
}
client=()  # where grpcio is installed, Ray's head serves Ray Client, too, on one port for all jobs unless told otherwise
if "$bin/python" -c 'import grpc' 2>/dev/null </dev/null; then client=(--ray-client-server-port=$((port + 10000))); fi
start 0 1 --head --node-ip-address="$ip" --port="$port" "${client[@]}" --include-dashboard=false
until "$bin/ray" health-check --address "$address" >/dev/null 2>&1; do
    if [[ -n $told ]] || ((SECONDS > 300)); then echo "Ray's head did not start at $address" >&2; again; exit 1; fi
    sleep 1
done
if ((SLURM_NNODES > 1)); then start 1 $((SLURM_NNODES - 1)) --address="$address"; fi
# Late nodes are used, too; waiting lets the sweep report at once what does not fit.
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
# 0: all cells have an outcome. 2: a mistake in the call, which a retry would repeat. After anything else a retry may
# help: cells were interrupted (130) or failed (1), the driver was killed (137), or Ray's head was lost.
if ((code != 0 && code != 2)); then again; fi
exit "$code"
