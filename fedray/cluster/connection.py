"""Starting a Ray on this machine for this process alone, or joining a cluster."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from fedray.cluster.ray_private import Job, count_machine_cpus, find_running_address, kill_monitor, reread_environment
from fedray.common.cpus import usable_cpus
from fedray.common.errors import UserError, one_line
from fedray.common.plugins import FOLDER, environment, folder
from fedray.common.signals import sigterm_as_interrupt

PATIENCE = 5.0
"""Seconds to wait for a cluster's port to answer."""
PRELOAD = "RAY_preload_python_modules"
"""Ray's option: what its processes import while they wait for work."""


@contextlib.contextmanager
def use_cluster(address: str | None = None, preload: Sequence[str] = ()) -> Iterator[None]:
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
            stack.enter_context(_start_local(preload))
        else:
            _join(address)
        stack.callback(_end)
        stack.enter_context(sigterm_as_interrupt())  # Ray has just set its own handler, which aborts
        yield


def _end() -> None:
    """End the local Ray, or leave the cluster."""
    kill_monitor()
    ray.shutdown()


@contextlib.contextmanager
def _start_local(preload: Sequence[str]) -> Iterator[None]:
    """Start a Ray that only who has this user's token can join: Ray lets it listen on every interface."""
    with (
        _set_environment("RAY_AUTH_MODE", "token"),
        _set_environment(FOLDER, folder()),
        _set_environment(PRELOAD, ",".join(preload)),
    ):
        reread_environment()
        try:
            ray.init(
                "local",
                num_cpus=count_cpus(),
                job_config=Job(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises plain Exceptions, too
            ray.shutdown()
            raise UserError(f"Ray does not start on this machine: {one_line(error)}") from None
        yield


@contextlib.contextmanager
def _set_environment(name: str, value: str) -> Iterator[None]:
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
        address = _find_current()
    _refuse_unreachable(address)
    remote = address.startswith("ray://")  # there the driver runs in the cluster, and this shows what it prints
    # A client of ray:// sends what it is given as JSON, which a JobConfig is not; the job is then the cluster's.
    job: dict[str, Any] = (
        {} if remote else {"job_config": Job(runtime_env={"env_vars": environment()} if environment() else None)}
    )
    try:
        ray.init(address, log_to_driver=remote, logging_level=logging.ERROR, **job)
    except Exception as error:
        ray.shutdown()
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if the cluster asks for a token, set RAY_AUTH_MODE=token"
        raise UserError(f"--address: cannot join {address}: {one_line(error)}{hint}") from None


def _find_current() -> str:
    """The address of the Ray that runs on this machine, or that Ray's address file names: maybe one that has ended."""
    try:
        return find_running_address()
    except ConnectionError as error:
        raise UserError(f"--address: cannot join auto: {one_line(error)}") from None


def count_cpus() -> int:
    """The CPUs that a Ray started on this machine gets: in a container those of its quota, with `taskset` its own."""
    return min(count_machine_cpus(), usable_cpus())


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
