"""The cluster recipes, as far as a machine without a cluster can try them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedray
from tests import small
from tests.conftest import each
from tests.sweep.running import write

REPOSITORY = Path(__file__).parents[2]
CLUSTERS = REPOSITORY / "sweeps/clusters"

STUBS = {
    "hostname": "echo 127.0.0.1\n",
    # Options up to the command; a worker's address is the head's, as both are this machine.
    "srun": "while [[ $1 == --* ]]; do shift; done\n"
    '[[ " $* " == *" --head "* ]] || set -- "$@" --node-ip-address=127.0.0.1\nexec "$@"\n',
    "scontrol": 'echo "$@" >>"$SCONTROL_CALLS"\n',
}


def load(name: str) -> Any:
    return yaml.safe_load((CLUSTERS / name).read_text(encoding="utf-8"))


def test_rayjob_mounts_what_its_containers_use_and_asks_for_a_token() -> None:
    job = load("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52), "tokens came with Ray 2.52"
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for spec in (group["template"]["spec"] for group in groups):
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert {"FEDRAY_STORAGE", "MLFLOW_TRACKING_URI"} <= {variable["name"] for variable in container["env"]}
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


def test_secrets_are_named_and_never_written() -> None:
    """Passwords come from Secrets; MLflow accepts requests for its own names only, and Postgres only MLflow's."""
    documents = list(yaml.safe_load_all((CLUSTERS / "mlflow.yaml").read_text(encoding="utf-8")))
    kinds = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert ("Secret", "fedray-mlflow") not in kinds, "it is made by a command"
    assert {("StatefulSet", "fedray-postgres"), ("Deployment", "fedray-mlflow")} <= set(kinds)
    pods = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in documents if "template" in d["spec"]}
    secret = {"secretKeyRef": {"name": "fedray-mlflow", "key": "postgres-password"}}
    for pod in pods.values():
        (container,) = pod["containers"]
        assert secret in [variable.get("valueFrom") for variable in container["env"]]
        assert {mount["name"] for mount in container["volumeMounts"]} <= {"data", "artifacts"}
        assert "fsGroup" in pod["securityContext"]
    (mlflow,) = pods["fedray-mlflow"]["containers"]
    assert "--allowed-hosts=mlflow:5000,localhost:5000" in mlflow["args"]
    policies = {d["metadata"]["name"] for d in documents if d["kind"] == "NetworkPolicy"}
    assert policies == {"fedray-mlflow", "fedray-postgres"}


def read_dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments, each on one line."""
    lines = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def test_the_image_is_that_of_the_templates_and_does_not_run_as_root() -> None:
    """No daemon builds it here; the hosted workflow does. Its own last step trains a model."""
    steps = read_dockerfile()
    user = [name for name, _ in steps].index("USER")
    assert steps[user][1] == "fedray"
    trial = "fedray run example --backend inline --no-track --set training.rounds=1"
    assert [rest for name, rest in steps[user:] if name == "RUN"] == [trial]
    made = next(rest for name, rest in steps if name == "RUN" and "useradd" in rest)
    assert "--uid 1000 fedray" in made, "the volume's fsGroup"
    for name, rest in steps:
        sources = rest.split()[:-1] if name == "COPY" and "--from" not in rest else []
        assert all((REPOSITORY / source).exists() for source in sources)
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
    job = load("kuberay.yaml")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    version = fedray.__version__.partition(".dev")[0]
    assert job["image"] == f"registry.example.org/fedray:{version}"
    assert f"fedray:{version}" in (CLUSTERS / "mlflow.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ray-up.yaml", "ray-up-aws.yaml"])
def test_ray_up_accepts_its_file(name: str) -> None:
    """The same two steps that `ray up` begins with, without asking the cloud."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(load(name))
    validate_config(config)
    commands = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    starts = [command for command in commands if " start " in command]
    assert len(starts) == 2
    assert all(command.startswith("RAY_AUTH_MODE=token ") for command in starts)


FAKES = {
    "ray": '[[ $1 == health-check ]] && exit "${HEALTH:-0}"\nexec sleep 600\n',
    "python": "cat >/dev/null <&0 || true\n",
    "fedray": 'trap \'sleep "${LAST:-0}"; exit 130\' TERM\ntouch "$STARTED"\n[[ -z ${CODE:-} ]] || exit "$CODE"\n'
    "while true; do sleep 0.1; done\n",
}
"""The files of `.venv/bin`; `fedray` ends with CODE, or as if interrupted."""


def install(folder: Path, scripts: dict[str, str]) -> Path:
    """Write programs into a folder and return it."""
    folder.mkdir(parents=True)
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def slurm(binaries: Path, folder: Path, store: str) -> dict[str, str]:
    """The variables of a job; `scontrol` notes its calls in the folder."""
    variables = {"PATH": f"{binaries}:{os.environ['PATH']}", "SCONTROL_CALLS": str(folder / "calls")}
    return variables | {"MLFLOW_TRACKING_URI": store, "FEDRAY_STORAGE": str(folder / "s"), "SLURM_CPUS_PER_TASK": "1"}


def submit(command: list[str], env: dict[str, str], folder: Path) -> None:
    """Run a job whose `fedray` ends with $CODE, or which is told to stop once that has started."""
    with subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True) as job:
        until = time.monotonic() + 60
        while not Path(env["STARTED"]).exists() and time.monotonic() < until:
            time.sleep(0.05)
        if not env["CODE"]:
            job.send_signal(signal.SIGTERM)
        assert job.wait(60) == int(env["CODE"] or 130)


@each(
    ("0", "0", False),
    ("1", "0", True),  # cells have failed, or Ray's head was lost
    ("2", "0", False),  # the user's mistake
    ("", "99", True),  # told to stop: always
)
def test_slurm_jobs_queue_again_if_another_try_may_help(code: str, restarts: str, again: bool, tmp_path: Path) -> None:
    binaries, calls = install(tmp_path / ".venv/bin", FAKES | STUBS), tmp_path / "calls"
    env = slurm(binaries, tmp_path, "sqlite:///x") | {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "CODE": code}
    env |= {"SLURM_RESTART_COUNT": restarts, "STARTED": str(tmp_path / "started")}
    submit(["bash", str(CLUSTERS / "slurm.sh"), "x.yaml"], env, tmp_path)
    assert (calls.read_text().split() if calls.exists() else []) == (["requeue", "7"] if again else [])


@pytest.mark.parametrize(("store", "code", "archive"), [("http://h:1", "0", False), ("", "0", True), ("", "", True)])
def test_a_task_of_an_array_runs_its_cell(store: str, code: str, archive: bool, tmp_path: Path) -> None:
    """Without a server it writes an archive. Told to stop, it lets the cell end and is queued again."""
    fakes = STUBS | {"fedray": f'echo "$@" >{tmp_path}/arguments\n{FAKES["fedray"]}'}
    binaries, calls = install(tmp_path / "bin", fakes), tmp_path / "calls"
    slurm = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SCONTROL_CALLS": str(calls)}
    env = slurm | {"PATH": f"{binaries}:/usr/bin:/bin", "FEDRAY_STORAGE": "/s", "STARTED": str(tmp_path / "started")}
    env |= {"CODE": code} | ({"MLFLOW_TRACKING_URI": store} if store else {})
    submit(["bash", str(CLUSTERS / "slurm-array.sh"), "x.yaml", "--force"], env, tmp_path)
    arguments = "run x.yaml --force --cell 3" + " --archive /s/archives/7/3.zip" * archive
    assert (tmp_path / "arguments").read_text().strip() == arguments
    assert (calls.read_text().split() if calls.exists() else []) == ([] if code else ["requeue", "9"])


@pytest.mark.parametrize("missing", ["FEDRAY_STORAGE", "file", "fedray"])
def test_slurm_script_says_what_is_missing(missing: str, tmp_path: Path) -> None:
    """Outside of a checkout it needs an activated environment."""
    outside = missing == "fedray"
    script = "slurm-array.sh" if outside else "slurm.sh"
    env = {"FEDRAY_STORAGE": str(tmp_path), "MLFLOW_TRACKING_URI": "sqlite:///x", "SLURM_JOB_ID": "7"}
    env |= {"PATH": "/usr/bin:/bin" if outside else os.environ["PATH"]}
    env.pop(missing, None)
    command = ["bash", CLUSTERS / script, *([] if missing == "file" else ["sweeps/quickstart.yaml"])]
    folder = tmp_path if outside else REPOSITORY
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == (1 if missing.isupper() else 2)
    assert ("fedray is neither on PATH nor" if outside else missing) in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_slurm_job_is_stopped_queued_again_and_finishes(tmp_path: Path) -> None:
    """Two Ray nodes on this machine, with a token; SIGTERM after the first evaluated round, then the job once more."""
    import mlflow

    binaries, calls, store = install(tmp_path / "bin", STUBS), tmp_path / "calls", f"sqlite:///{tmp_path}/mlflow.db"
    slow, training = {"name": "tests.plugins:Slow", "nap": 0.1}, {"rounds": 40, "local_steps": 1}
    often: dict[str, Any] = {"evaluation": {"every": 1}, "runtime": {"checkpoint_every": 1}}
    base = small.sections(slow, (4, 2), "mlp", training=training, **often)
    sweep = write(tmp_path, {"name": "on_slurm", "grid": {"seed": [0, 1]}, "base": base})
    (tmp_path / ".venv").symlink_to(sys.prefix)
    env = os.environ | slurm(binaries, tmp_path, store) | {"PYTHONPATH": str(REPOSITORY)}
    env |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NNODES": "2"}
    command = ["bash", str(CLUSTERS / "slurm.sh"), str(sweep)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, cwd=tmp_path, text=True, **pipes) as job:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "s/cells").glob("*/*")) and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=120)
    assert job.returncode == 130, output
    assert calls.read_text().split() == ["requeue", str(os.getpid())]
    client = mlflow.MlflowClient(store)

    def cells() -> list[Any]:
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        return [run for run in runs if "fedray.cell" in run.data.tags]

    assert {run.data.tags["fedray.status"] for run in cells()} == {"interrupted"}
    assert not list((tmp_path / "s/tokens").iterdir()), "the token outlives its job"
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on_slurm: 2 finished" in done.stdout
    assert ({run.data.tags["fedray.status"] for run in cells()}, len(cells())) == ({"finished"}, 2)
    assert calls.read_text().count("requeue") == 1
