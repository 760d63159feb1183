"""Starting a Ray of one's own on this machine, or joining a cluster."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import ray

from fedray.common.errors import UserError
from fedray.common.signals import sigterm_as_interrupt

PATIENCE = 5.0
"""Seconds to wait for a cluster's port to answer."""


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Ray for the duration of a block: `address` (or $RAY_ADDRESS), else a local one for this machine alone.

    Raises UserError where nobody answers.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield  # the caller's own
        return
    try:
        if address is None:
            ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        else:
            _refuse_unreachable(address)
            remote = address.startswith("ray://")  # there the driver runs in the cluster, and this shows what it prints
            ray.init(address, log_to_driver=remote, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; where the cluster asks for a token, set RAY_AUTH_MODE=token"
        raise UserError(f"--address: {address} cannot be joined: {str(error).splitlines()[0]}{hint}") from None
    try:
        with sigterm_as_interrupt():  # Ray has just set its own handler, which aborts
            yield
    finally:
        ray.shutdown()


def cpus_here() -> int:
    """The CPUs that a Ray started on this machine counts: in a container those of its quota."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus(override_docker_cpu_warning=True))


def _refuse_unreachable(address: str) -> None:
    """Ray itself retries for minutes; a port that does not answer is a mistake worth one line at once."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto` and the like: Ray knows where to look
    if not port.isdigit():
        raise UserError(f"--address: found {address!r}; auto, HOST:PORT or ray://HOST:PORT is required")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--address: nobody answers at {address}: {error}") from None
