"""Joining a cluster, or starting a Ray: what goes wrong is one line. The parts of Ray beyond its public interface
exist, and are used in one file only."""

import contextlib
import importlib
import os
import re
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import worker
from ray._private.node import Node
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import TuneError
from ray.tune.experiment import Trial

import fedray
from fedray.cluster import connection
from fedray.cluster.connection import PRELOAD, count_cpus, refuse_bad_address, use_cluster
from fedray.cluster.ray_private import read_error, restart_trials_killed_for_memory, shorten_messages
from fedray.common.errors import UserError, join_lines
from fedray.config import Runtime
from fedray.sweep.single import _can_begin_here
from tests import small
from tests.conftest import each


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)


def init(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[tuple[str, str | None]]:
    """Replace `ray.init`; the addresses and values of RAY_AUTH_MODE that it was called with. Ray writes a runtime
    environment, which may have secrets, into its logs: none is given, and no dashboard is started."""
    seen: list[tuple[str, str | None]] = []

    def called(address: str, **options: Any) -> None:
        seen.append((address, os.environ.get("RAY_AUTH_MODE")))
        assert "runtime_env" not in options
        assert address != "local" or options["include_dashboard"] is False
        if error is not None:
            raise error

    monkeypatch.setattr(ray, "init", called)
    monkeypatch.setattr(connection, "ask_nodes", lambda task: [("10.0.0.2", task())])
    return seen


def test_a_local_ray_asks_for_a_token_and_a_cluster_does_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` reaches Ray as it is: only then does Ray send the user's token, if there is one."""
    seen = init(monkeypatch)
    with use_cluster():
        pass
    assert "RAY_AUTH_MODE" not in os.environ, "a cluster that is joined later may have no tokens"
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(connection, "find_running_address", lambda: there)
        for address in (there, "auto"):
            with use_cluster(address):
                pass
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with use_cluster():
        pass
    assert seen == [("local", "token"), (there, None), ("auto", None), ("local", "disabled")]


def test_a_folder_too_long_for_a_socket_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ray itself: Linux allows 107 bytes."""
    (folder := tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    said = r"^Ray does not start .* cannot exceed 107 bytes: .*; set RAY_TMPDIR to another folder, of few characters"
    with pytest.raises(UserError, match=said), use_cluster():
        pass


@each(
    (PermissionError(13, "Permission denied", "/x/tmp/ray/session_latest"), "; set RAY_TMPDIR to another folder"),
    (FileExistsError(17, "File exists", "/x/tmp/ray"), "; set RAY_TMPDIR to another folder"),
    (PermissionError(13, "Permission denied", "/x/.ray"), "; set HOME to a folder that you can write"),
    (Exception("The current node timed out during startup.\nMore lines."), "; call again, once less runs on this"),
)
def test_a_ray_that_does_not_start_is_one_line(error: Exception, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable of the folder that is at fault."""
    init(monkeypatch, error)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/x/tmp/")
    said = f"^Ray does not start on this machine: {type(error).__name__}: "
    with pytest.raises(UserError, match=said) as caught, use_cluster():
        pass
    assert str(caught.value).partition(join_lines(error))[2].startswith(advice)
    assert "\n" not in str(caught.value)


def test_slurms_share_of_the_cpus_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm without cgroups binds no process: two trials at a time ran on one CPU."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(connection, "count_machine_cpus", lambda: 16)
    for asked, count in (("4", 4), ("64", 8), ("", 8), ("4(x2)", 8)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
        assert count_cpus() == count, asked


def test_the_address_file_of_a_cluster_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` finds the address in the file, where nothing listens. Ray itself tries for minutes. Without an address a
    local Ray is started, despite the file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(connection, "find_running_address", lambda: f"127.0.0.1:{port}")
    seen = init(monkeypatch)
    with pytest.raises(UserError, match=rf"^--address: cannot connect to 127.0.0.1:{port}: "), use_cluster("auto"):
        pass
    assert seen == []
    for here in ("", "local"):  # as a script leaves it; Ray, too, takes it for none
        monkeypatch.setenv("RAY_ADDRESS", here)
        refuse_bad_address(None)
        with use_cluster():
            pass
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with use_cluster("local"):
        pass
    assert seen == [("local", "token")] * 3


def test_a_cluster_that_cannot_be_joined_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    init(monkeypatch, ConnectionError("no answer"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = f"--address: cannot join {address}: ConnectionError: no answer; if the cluster asks for a token, set"
        with small.refused(told), use_cluster(address):
            pass


@pytest.mark.parametrize(("theirs", "said"), [("another", "has other code of fedray than this"), ("", "has no fedray")])
def test_a_cluster_with_other_code_is_refused(theirs: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init(monkeypatch)
    monkeypatch.setattr(connection, "ask_nodes", lambda task: [("10.0.0.2", task()), ("10.0.0.3", theirs)])
    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    with server, small.refused(f"--address: node 10.0.0.3 {said}"), use_cluster(address):
        pass


def test_a_local_ray_is_told_what_to_import_and_is_as_nice_and_silent_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    told, options = list[list[str | None]](), (PRELOAD, "RAY_worker_niceness", "RAY_USAGE_STATS_ENABLED")
    for name in options:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: told.append([os.environ.get(name) for name in options]))
    with use_cluster(preload=["one", "two"]):
        pass
    assert not {*options} & os.environ.keys()
    monkeypatch.setenv("RAY_worker_niceness", "7")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with use_cluster():
        pass
    assert told == [["one,two", "0", "0"], ["", "7", "1"]]
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true", "since fedray was imported"


@pytest.mark.parametrize(("mine", "expected"), [({0}, 1), (range(10_000), count_cpus())])
def test_a_local_ray_counts_the_cpus_that_it_may_use(mine: Any, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `taskset -c 0`; and never more than a container's quota."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: mine)
    monkeypatch.setattr(ray, "init", lambda *_, **options: given.update(options))
    with use_cluster():
        pass
    assert (given["num_cpus"], count_cpus()) == (expected, expected)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for here in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", here)
        assert [_can_begin_here(Runtime(cpus_per_actor=wanted)) for wanted in (1, 2)] == [True, len(mine) > 1]


def test_a_local_ray_ignores_sigterm_is_not_nicer_than_others_and_ends_with_its_agents() -> None:
    """Servers that fedray does not use are not started; a Ray that the user starts has them."""
    import psutil  # Ray brings it along

    start_monitor = Node.start_monitor
    with use_cluster():
        node = ray._private.worker._global_node
        assert node.all_processes.keys() == {"gcs_server", "raylet"}
        assert Node.start_monitor is start_monitor
        for name in ("raylet", "gcs_server"):
            node.all_processes[name][0].process.send_signal(signal.SIGTERM)
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
        left = psutil.Process(node.all_processes["raylet"][0].process.pid).children()
        assert len(left) >= 3, "two agents and a worker"
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:
        left = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not left


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "ray://127.0.0.1:1", "127.0.0.1:1"])
def test_a_bad_address_in_the_environment_names_the_variable(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Ray is asked; what else an address may not be is in `tests/bad_input`."""
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was asked"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UserError, match=r"^RAY_ADDRESS: (found|cannot connect to) '?") as caught, use_cluster():
        pass
    assert address in str(caught.value)
    with pytest.raises(UserError, match=r"^RAY_ADDRESS: "):
        refuse_bad_address(None)


def test_lines_of_ray_appear_once_joined(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    init(monkeypatch)
    monkeypatch.setattr(ray, "init", lambda *_, **__: os.write(2, b"a warning\n"))
    with socket.create_server(("127.0.0.1", 0)) as server, use_cluster(f"127.0.0.1:{server.getsockname()[1]}"):
        os.write(2, b"later\n")
    assert capfd.readouterr().err == "a warning\nlater\n"


MODULES = {
    "air.execution._internal.actor_manager": "RayActorManager._actor_task_failed",
    "_private.services": "get_ray_address_from_environment",
    "_private.utils": "get_num_cpus set_sigterm_handler",
    "_private.worker": "_global_node print_to_stdstream",
    "_private.node": "Node.kill_all_processes Node.start_api_server Node.start_log_monitor Node.start_monitor",
    "_raylet": "Config.initialize",
    "job_config": "JobConfig._runtime_env_has_working_dir",
    "experimental.internal_kv": "_internal_kv_del _internal_kv_get _internal_kv_put",
    "tune.execution.class_cache": "DEFAULT_ENV_VARS.clear ENV_VARS_TO_PROPAGATE.clear",
    "tune.execution.tune_controller": "TuneController._maybe_reuse_cached_actor TuneController._process_trial_failure",
    "tune.experiment": "Trial.error_file Trial.pickled_error_file Trial.update_resources",
    "tune.schedulers": "MedianStoppingRule._on_insufficient_samples",
}
"""Module of Ray -> what of it fedray uses."""
NAMES = [f"ray.{module}:{name}" for module, names in MODULES.items() for name in names.split()]
METADATA = ("num_failures", "last_result", "metric_analysis.clear", "metric_n_steps.clear")
OF_A_TRIAL = ["temporary_state.ray_actor", *(f"run_metadata.{name}" for name in METADATA)]
PRIVATE = re.compile(
    r"(?<![a-z])_private\b|_raylet|internal_kv|class_cache|run_metadata|temporary_state|error_file|_on_insufficient"
    r"|_runtime_env_has|_actor_task_failed|_process_trial_failure|_resetting_trials|_maybe_reuse_cached"
    r"|_trial_to_actor|_actor_manager"
)
FILE = "cluster/ray_private.py"


def refuse_missing(found: object, name: str, where: str) -> None:
    for part in name.split("."):
        if not hasattr(found, part):
            remedy = f"change fedray/{FILE}, or cap ray in requirements.txt below this version"
            pytest.fail(f"Ray {ray.__version__} has no {where} any more; {remedy}", pytrace=False)
        found = getattr(found, part)


@pytest.mark.parametrize("name", NAMES)
def test_ray_has_the_name(name: str) -> None:
    module, _, attribute = name.partition(":")
    found = None
    with contextlib.suppress(ImportError):
        found = importlib.import_module(module)
    refuse_missing(found, attribute, name)


@pytest.mark.parametrize("name", OF_A_TRIAL)
def test_a_trial_has_the_attribute(name: str) -> None:
    refuse_missing(Trial("nothing", stub=True), name, f"Trial.{name}")


def test_what_ended_a_trial_is_known_also_for_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tune tells the trial, which it then restarts; without the change it raises RuntimeError, and the sweep ends."""
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", RayActorManager._actor_task_failed)
    restart_trials_killed_for_memory()
    manager, seen = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None), []
    actor = TrackedActor(7, on_error=lambda actor, error: seen.append(error))
    RayActorManager._actor_task_failed(manager, TrackedActorTask(actor), OutOfMemoryError("2 workers were killed"))
    assert isinstance(seen[0], RayActorError)
    assert "2 workers were killed" in str(seen[0])
    # Tune keeps the exceptions of processes and of their code; of all others it keeps the text.
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
    lines = ["A worker\ndied\x1b[2J. To troubleshoot" + 1000 * " x", 1000 * "y"]
    worker.print_to_stdstream({"lines": lines, "pid": "raylet"}, ignore_prefix=False)
    assert capsys.readouterr() == ("", f"Ray: A worker died\\x1b[2J\nRay: {200 * 'y'}\n")
