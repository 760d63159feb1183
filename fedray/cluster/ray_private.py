"""The only module that uses parts of Ray and Tune beyond their public interfaces.

Ray may change any of them with a minor version, so requirements.txt caps ray below the next one, which is untested.
`tests/cluster/test_connection.py` names what is missing in a version.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.job_config import JobConfig

from fedray.common.errors import escape

if TYPE_CHECKING:  # Tune takes a second to import, and a single run does not need it
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import MedianStoppingRule

NAMESPACE = "fedray/heartbeat"
LONGEST = 200
"""Maximum number of characters of a message of Ray's."""


class Job(JobConfig):
    """A job that keeps the working directory and the script's folder off the front of its workers' search path.

    Ray would put them there, and import a file named `numpy.py`. `take_sources` lets workers find plug-ins, last.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def find_running_address() -> str:
    """Return the address of the Ray running on this machine, or the one in Ray's address file, which may have ended.

    Raises ConnectionError if none is running.
    """
    from ray._private.services import get_ray_address_from_environment

    return str(get_ray_address_from_environment("auto", None))


def reread_environment() -> None:
    """Make Ray read its options from the environment again, as it did when it was imported."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    Config.initialize("")


def shorten_messages() -> None:
    """Print Ray's messages, of 1,000 characters about a process that died, as their first sentence on standard error.

    fedray says what becomes of the cell.
    """

    def print_short(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            said, _, _ = " ".join(line.split()).partition(". ")
            print(f"Ray: {escape(said)[:LONGEST]}", file=sys.stderr, flush=True)

    ray._private.worker.print_to_stdstream = print_short


@contextlib.contextmanager
def _replace(owner: Any, names: Sequence[str], function: Callable[..., None]) -> Iterator[None]:
    """Put a function in the place of attributes within a block."""
    kept = {name: getattr(owner, name) for name in names}
    try:
        for name in names:
            setattr(owner, name, function)
        yield
    finally:
        for name, own in kept.items():
            setattr(owner, name, own)


def leave_out_servers() -> contextlib.AbstractContextManager[None]:
    """Start a Ray within the block without three servers that nothing here asks: their imports cost two seconds of CPU.

    They are the autoscaler's monitor, the log monitor and the dashboard, which Ray starts even without its pages.
    """
    from ray._private.node import Node

    servers = ("start_monitor", "start_log_monitor", "start_api_server")
    return _replace(Node, servers, lambda self, **options: None)


def keep_sigterm_handler() -> contextlib.AbstractContextManager[None]:
    """Start or join a Ray within the block without its handler of SIGTERM, which ends the process at once."""
    return _replace(ray._private.utils, ["set_sigterm_handler"], lambda handler: None)


def shut_down() -> None:
    """Leave the cluster, or kill a local Ray's processes instead of waiting seconds for each to react to SIGTERM.

    They are started with it blocked (`connection`). The raylet's agents, which would try for minutes to report its
    death, are killed as well.
    """
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    children = list[psutil.Process]()
    if node := ray._private.worker._global_node:
        kill = node.kill_all_processes
        node.kill_all_processes = lambda **options: kill(**options | {"allow_graceful": False})
        for started in node.all_processes.get("raylet", []):
            with contextlib.suppress(psutil.Error):
                children += psutil.Process(started.process.pid).children()
    ray.shutdown()
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()


def count_machine_cpus() -> int:
    """Return the number of the machine's CPUs, or in a container its quota."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus(override_docker_cpu_warning=True))


def write_heartbeat(trial: str, text: str) -> None:
    """Store a trial's heartbeat in Ray's key-value store, where the driver reads it."""
    _internal_kv_put(trial, text, namespace=NAMESPACE)


def read_heartbeat(trial: str) -> str | None:
    """Return a trial's latest heartbeat, or None."""
    text: bytes | None = _internal_kv_get(trial, namespace=NAMESPACE)
    return None if text is None else text.decode()


def delete_heartbeat(trial: str) -> None:
    """Remove a trial's heartbeat."""
    _internal_kv_del(trial, namespace=NAMESPACE)


def give_trials_waiting_processes() -> None:
    """Let Tune's trials use processes that already wait for work.

    Tune sets environment variables for trials (for Lightning, Ray Train, AWS credentials). None is needed here, and
    because of them Ray would start new processes, which import torch again.
    """
    from ray.tune.execution import class_cache

    class_cache.DEFAULT_ENV_VARS.clear()
    class_cache.ENV_VARS_TO_PROPAGATE.clear()


def restart_trials_killed_for_memory() -> None:
    """Let Tune restart a trial whose process Ray ends because memory runs out, like any whose process dies.

    Ray reports it as `OutOfMemoryError`, which Tune does not expect from a call: it would end the whole sweep.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager

    handle = RayActorManager._actor_task_failed

    def handle_failure(manager: RayActorManager, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        handle(manager, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = handle_failure  # type: ignore[assignment, method-assign]


def count_each_death_once() -> None:
    """Let Tune count the death of a trial's process once, and start the trial again, whatever the process was doing.

    If it dies while it takes over its next trial, Tune handles the same exception twice, as the actor's and as the
    call's, and ends the trial for good the second time; and it would wait for ever for the process to take it over.
    """
    from ray.tune.execution.tune_controller import TuneController

    handle = TuneController._process_trial_failure
    last: weakref.WeakKeyDictionary[Trial, Exception] = weakref.WeakKeyDictionary()

    def handle_once(controller: TuneController, trial: "Trial", exception: Any) -> None:
        if last.get(trial) is not exception:
            last[trial] = exception
            controller._resetting_trials.discard(trial)
            handle(controller, trial, exception)

    TuneController._process_trial_failure = handle_once  # type: ignore[assignment, method-assign]


def let_processes_finish_starting() -> None:
    """Let a trial wait for its own process once that starts, rather than take one that another trial has left.

    Tune would take it and end the one that starts. While cells are shorter than a start that happens again and again,
    and with `actors: auto`, where one trial waits at a time, a sweep would stay in one process to its end.
    """
    from ray.tune.execution.tune_controller import TuneController

    reuse = TuneController._maybe_reuse_cached_actor

    def reuse_or_wait(controller: TuneController, trial: "Trial") -> bool:
        own = controller._trial_to_actor.get(trial)
        starting = own is not None and controller._actor_manager.is_actor_started(own)
        if starting and trial not in controller._resetting_trials:
            return False
        return bool(reuse(controller, trial))

    TuneController._maybe_reuse_cached_actor = reuse_or_wait  # type: ignore[assignment, method-assign]


def kill_process(trial: "Trial") -> None:
    """End the process of a trial."""
    actor = trial.temporary_state.ray_actor
    if actor is not None:
        ray.kill(actor)


def forgive_failures(trial: "Trial") -> None:
    """Reset a trial's number of failures."""
    trial.run_metadata.num_failures = 0


def drop_results(trial: "Trial") -> None:
    """Free an ended trial's results and their statistics; its config stays for Tune's result grid."""
    trial.run_metadata.last_result = {"config": trial.config}
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()


def read_error(trial: "Trial") -> Exception | str:
    """Return the exception that ended a trial, or its text if Tune kept nothing else; empty for neither.

    `Trial.get_error` and `Trial.get_pickled_error` look where Tune copies the files when the sweep ends.
    """
    if trial.pickled_error_file:
        error: Exception = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        return error
    return Path(trial.error_file).read_text(encoding="utf-8") if trial.error_file else ""


def make_median_rule(metric: str, grace: int) -> "MedianStoppingRule":
    """Return Tune's median rule for a metric by round, whose largest value is the best, that never pauses a trial.

    A paused trial would have to give Tune a checkpoint, but trials keep their own. One that starts again, after its
    process has died, reports the rows of its checkpoint again, which count once.
    """
    from ray.tune.schedulers import MedianStoppingRule

    told = dict[str, float]()

    class Median(MedianStoppingRule):
        def _on_insufficient_samples(self, *_: object) -> str:
            return str(self.CONTINUE)

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if result.get("round", 0) <= told.get(trial.trial_id, 0):
                return str(self.CONTINUE)
            told[trial.trial_id] = result["round"]
            return str(super().on_trial_result(controller, trial, result))

    return Median("round", metric, "max", grace_period=grace)
