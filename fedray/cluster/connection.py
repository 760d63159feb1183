"""Starting a Ray on this machine for this process alone, or joining a cluster."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray._private.services import get_ray_address_from_environment
from ray._raylet import Config  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from fedray.common.cpus import usable_cpus
from fedray.common.errors import UserError, one_line
from fedray.common.plugins import FOLDER, environment, folder
from fedray.common.signals import sigterm_as_interrupt

PATIENCE = 5.0
"""Seconds to wait for a cluster's port to answer."""
PRELOAD = "RAY_preload_python_modules"
"""Ray's option: what its processes import while they wait for work."""


class _Job(JobConfig):
    """A job whose workers have neither the working directory nor the script's in front of their search path.

    Ray would put them there, and run a file `numpy.py`. Workers find plug-ins by FEDRAY_PLUGINS, searched last.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


@contextlib.contextmanager
def cluster(address: str | None = None, preload: Sequence[str] = ()) -> Iterator[None]:
    """Ray for the duration of a block; where one is running in this process already, that one.

    Args:
        address: of the cluster to join (`auto`, HOST:PORT or ray://HOST:PORT); None: $RAY_ADDRESS, else a local Ray
            for this machine alone.
        preload: modules that each process of a local Ray imports at its start.

    Raises:
        UserError: the cluster cannot be joined, or the local Ray does not start.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield
        return
    with contextlib.ExitStack() as stack:
        if address is None:
            stack.enter_context(_local(preload))
        else:
            _join(address)
        stack.callback(_end)
        stack.enter_context(sigterm_as_interrupt())  # Ray has just set its own handler, which aborts
        yield


def _end() -> None:
    """End the local Ray, or leave the cluster.

    Ray ends the GCS first, and then waits a second for the autoscaler's monitor, which cannot end without it. On one
    machine nothing is scaled, so that the monitor is killed before.
    """
    if node := ray._private.worker._global_node:
        node.kill_monitor(check_alive=False)
    ray.shutdown()


@contextlib.contextmanager
def _local(preload: Sequence[str]) -> Iterator[None]:
    """Start a Ray that only who has this user's token can join: Ray lets it listen on every interface."""
    with (
        _environment("RAY_AUTH_MODE", "token"),
        _environment(FOLDER, folder()),
        _environment(PRELOAD, ",".join(preload)),
    ):
        Config.initialize("")  # Ray has read its environment before
        try:
            ray.init(
                "local",
                num_cpus=cpus_here(),
                job_config=_Job(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises plain Exceptions, too
            ray.shutdown()
            raise UserError(f"Ray does not start on this machine: {one_line(error)}") from None
        yield


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable for the duration of a block, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _join(address: str) -> None:
    if address == "auto":
        address = _current()
    _refuse_unreachable(address)
    remote = address.startswith("ray://")  # there the driver runs in the cluster, and this shows what it prints
    # A client of ray:// sends what it is given as JSON, which a JobConfig is not; the job is then the cluster's.
    job: dict[str, Any] = (
        {} if remote else {"job_config": _Job(runtime_env={"env_vars": environment()} if environment() else None)}
    )
    try:
        ray.init(address, log_to_driver=remote, logging_level=logging.ERROR, **job)
    except Exception as error:
        ray.shutdown()
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if the cluster asks for a token, set RAY_AUTH_MODE=token"
        raise UserError(f"--address: cannot join {address}: {one_line(error)}{hint}") from None


def _current() -> str:
    """The address of the Ray that runs on this machine, or that Ray's address file names: maybe one that has ended."""
    try:
        return str(get_ray_address_from_environment("auto", None))
    except ConnectionError as error:
        raise UserError(f"--address: cannot join auto: {one_line(error)}") from None


def cpus_here() -> int:
    """The CPUs that a Ray started on this machine gets: in a container those of its quota, with `taskset` its own."""
    from ray._private.utils import get_num_cpus

    return min(int(get_num_cpus(override_docker_cpu_warning=True)), usable_cpus())


def _refuse_unreachable(address: str) -> None:
    """Ray itself retries for minutes; a port that does not answer is a mistake worth one line at once."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto` and the like: Ray knows where to look
    if not port.isdigit():
        raise UserError(f"--address: found {address!r}; expected auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--address: cannot connect to {address}: {error}") from None
