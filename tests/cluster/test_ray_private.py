"""The parts of Ray beyond its public interface exist, and are used in one file only; clients' states in its store."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from ray._private import worker
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import TuneError
from ray.tune.experiment import Trial

import fedray
from fedray.cluster.object_states import ObjectState
from fedray.cluster.ray_private import read_error, restart_trials_killed_for_memory, shorten_messages
from fedray.common.vectors import Vectors

NAMES = [
    "ray.air.execution._internal.actor_manager:RayActorManager._actor_task_failed",
    "ray._private.services:get_ray_address_from_environment",
    "ray._private.utils:get_num_cpus",
    "ray._private.utils:set_sigterm_handler",
    "ray._private.worker:_global_node",
    "ray._private.worker:print_to_stdstream",
    "ray._private.node:Node.kill_all_processes",
    "ray._private.node:Node.start_api_server",
    "ray._private.node:Node.start_log_monitor",
    "ray._private.node:Node.start_monitor",
    "ray._raylet:Config.initialize",
    "ray.job_config:JobConfig._runtime_env_has_working_dir",
    "ray.experimental.internal_kv:_internal_kv_del",
    "ray.experimental.internal_kv:_internal_kv_get",
    "ray.experimental.internal_kv:_internal_kv_put",
    "ray.tune.execution.class_cache:DEFAULT_ENV_VARS.clear",
    "ray.tune.execution.class_cache:ENV_VARS_TO_PROPAGATE.clear",
    "ray.tune.execution.tune_controller:TuneController._maybe_reuse_cached_actor",
    "ray.tune.execution.tune_controller:TuneController._process_trial_failure",
    "ray.tune.experiment:Trial.error_file",
    "ray.tune.experiment:Trial.pickled_error_file",
    "ray.tune.experiment:Trial.update_resources",
    "ray.tune.schedulers:MedianStoppingRule._on_insufficient_samples",
]
OF_A_TRIAL = [
    "temporary_state.ray_actor",
    "run_metadata.num_failures",
    "run_metadata.last_result",
    "run_metadata.metric_analysis.clear",
    "run_metadata.metric_n_steps.clear",
]
PRIVATE = re.compile(
    r"(?<![a-z])_private\b|_raylet|internal_kv|class_cache|run_metadata|temporary_state|error_file|_on_insufficient"
    r"|_runtime_env_has|_actor_task_failed|_process_trial_failure|_resetting_trials|_maybe_reuse_cached"
    r"|_trial_to_actor|_actor_manager"
)
FILE = "cluster/ray_private.py"


def refuse_missing(found: object, name: str, where: str) -> None:
    for part in name.split("."):
        if not hasattr(found, part):
            pytest.fail(
                f"Ray {ray.__version__} has no {where} any more; change fedray/{FILE}, or cap ray in requirements.txt "
                "below this version",
                pytrace=False,
            )
        found = getattr(found, part)


@pytest.mark.parametrize("name", NAMES)
def test_ray_has_the_name(name: str) -> None:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError:
        found = None
    refuse_missing(found, attribute, name)


@pytest.mark.parametrize("name", OF_A_TRIAL)
def test_a_trial_has_the_attribute(name: str) -> None:
    refuse_missing(Trial("nothing", stub=True), name, f"Trial.{name}")


def test_a_process_that_ended_for_memory_is_one_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune tells the trial, which it then restarts; without the change it raises RuntimeError, and the sweep ends."""
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", RayActorManager._actor_task_failed)
    restart_trials_killed_for_memory()
    manager, seen = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None), []
    actor = TrackedActor(7, on_error=lambda actor, error: seen.append(error))
    RayActorManager._actor_task_failed(manager, TrackedActorTask(actor), OutOfMemoryError("2 workers were killed"))
    assert isinstance(seen[0], RayActorError)
    assert "2 workers were killed" in str(seen[0])


def test_what_ended_a_trial_is_known_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune keeps the exceptions of processes and of their code; of all others it keeps the text."""
    monkeypatch.setattr(Trial, "local_path", str(tmp_path))
    trial = Trial("nothing", stub=True)
    assert read_error(trial) == ""
    trial.handle_error(TuneError("no process came up"))
    assert str(read_error(trial)).endswith("no process came up\n")
    trial.handle_error(RayActorError(error_msg="it is gone"))
    assert isinstance(read_error(trial), RayActorError)
    assert "it is gone" in str(read_error(trial))


def test_one_file_uses_private_names() -> None:
    folder = Path(fedray.__file__).parent
    using = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert using <= {FILE}


def test_a_message_of_rays_is_a_short_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", None)
    shorten_messages()
    worker.print_to_stdstream(
        {"lines": ["A worker\ndied\x1b[2J. To troubleshoot" + 1000 * " x", 1000 * "y"], "pid": "raylet"},
        ignore_prefix=False,
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"Ray: A worker died\\x1b[2J\nRay: {200 * 'y'}\n"


def test_what_is_read_lies_in_the_store_and_not_in_the_reader(local_ray: None) -> None:
    """No copy: the tensor's memory is that of the store's array."""
    state = ObjectState(ray.put({"h": np.arange(1 << 18, dtype=np.float32)}))
    first, second = state.load(), state.load()
    assert isinstance(first, Vectors)
    assert first.h.data_ptr() == second.h.data_ptr()
    assert torch.equal(first.h, torch.arange(1 << 18, dtype=torch.float32))
