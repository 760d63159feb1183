#!/bin/bash
# A sweep as a Slurm array: each cell is a job of its own, without a Ray cluster.
#
#   fedray list clusters slurm-array.sh > slurm-array.sh
#   fedray sweep sweep.yaml --dry-run                  # numbers the cells
#   export FEDRAY_STORAGE=/shared/me/fedray MLFLOW_TRACKING_URI=http://mlflow.example.org:5000
#   export FEDRAY_DATA=/shared/data    # `fedray data fetch` has put the data sets there
#   sbatch --array=1-28%8 slurm-array.sh sweep.yaml    # 28 cells, at most 8 at a time
#
# With an MLflow server `fedray status` and `fedray tables` show the cells at once. Without one each cell writes an
# archive, and one command adds them to a store: fedray import "$FEDRAY_STORAGE"/archives/JOB/*.zip
# Submit with fedray's environment activated, or next to its .venv. Arguments after the file go to `fedray run`. Options of
# sbatch before slurm-array.sh replace those below; your site's, such as --account=... and --partition=..., go there, too.
#
#SBATCH --job-name=fedray
#SBATCH --output=fedray-%A-%a.log
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --requeue
# Two minutes before the time limit, or on preemption if the site sets PreemptParameters=send_user_signal, the cell is
# stopped and the job requeued; it resumes from the cell's checkpoint.
#SBATCH --signal=B:TERM@120
set -euo pipefail

fedray=$(command -v fedray || echo "$PWD/.venv/bin/fedray")
[[ -x $fedray ]] || { echo "fedray is neither on PATH nor at $fedray; activate its environment" >&2; exit 2; }
: "${FEDRAY_STORAGE:?a folder that all nodes see, for checkpoints}"
: "${SLURM_ARRAY_TASK_ID:?submit with sbatch --array=1-CELLS}"
[[ $# -gt 0 ]] || { echo "a sweep's YAML file is required" >&2; exit 2; }

archive=()
if [[ ${MLFLOW_TRACKING_URI:-sqlite:} == sqlite:* ]]; then
    archive=(--archive "$FEDRAY_STORAGE/archives/$SLURM_ARRAY_JOB_ID/$SLURM_ARRAY_TASK_ID.zip")
fi
told='' cell=''
trap 'told=yes; [[ -z $cell ]] || kill -TERM "$cell" 2>/dev/null || true' TERM
"$fedray" run "$@" --cell "$SLURM_ARRAY_TASK_ID" "${archive[@]}" &
cell=$!
code=0
wait "$cell" || code=$?
if [[ -n $told ]]; then
    code=0
    wait "$cell" || code=$?  # the first wait ended with the signal
    scontrol requeue "$SLURM_JOB_ID" || true  # refused if the job has been cancelled
fi
exit "$code"
