"""Start a Ray on this machine for this process alone, or join a cluster, for a block or until the process ends."""

import atexit
import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.cluster.ray_private import (
    Job,
    count_machine_cpus,
    find_running_address,
    keep_sigterm_handler,
    leave_out_servers,
    reread_environment,
    shorten_messages,
    shut_down,
)
from fedray.common.calls import check_arguments
from fedray.common.errors import UserError, join_lines, restate, truncate_repr
from fedray.common.process import block_signal, count_usable_cpus, treat_sigterm_as_interrupt

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds to wait for a cluster's port to answer."""
PRELOAD = "RAY_preload_python_modules"
"""Ray's option for modules that its processes import while they wait for work."""


@contextlib.contextmanager
def use_cluster(address: str | None = None, preload: Sequence[str] = ()) -> Iterator[None]:
    """Provide Ray for the duration of a block; a Ray that this process already uses is kept.

    address: the cluster to join (`auto` or HOST:PORT); None for $RAY_ADDRESS, or for a local Ray on this machine if
    that is not set. preload: modules that each process of a local Ray imports at its start. Raises UserError if the
    cluster cannot be joined, or the local Ray does not start.
    """
    key, address = find_address(address)
    if ray.is_initialized():
        yield
        return
    shorten_messages()
    with contextlib.ExitStack() as stack:
        stack.enter_context(treat_sigterm_as_interrupt())
        with keep_sigterm_handler():
            if address is None:
                stack.enter_context(_start_local(preload))
            else:
                _join(key, address)
        stack.callback(shut_down)
        stack.enter_context(treat_sigterm_as_interrupt())  # Ray has just set one in C++, which aborts
        yield


@contextlib.contextmanager
def _start_local(preload: Sequence[str]) -> Iterator[None]:
    """Start a Ray that only holders of this user's token can join, because Ray listens on every interface.

    Its workers compete with other programs like any process: Ray's niceness of 15 lets a busy machine starve them.
    """
    variables = {
        "RAY_AUTH_MODE": "token",
        PRELOAD: ",".join(preload),
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    added = variables.keys() - os.environ.keys()  # what the user has set stays
    os.environ.update({name: variables[name] for name in added})
    try:
        reread_environment()
        try:
            with block_signal(), leave_out_servers():
                ray.init(
                    "local",
                    num_cpus=count_cpus(),
                    job_config=Job(),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except KeyboardInterrupt:
            shut_down()
            raise
        except Exception as error:  # Ray raises plain Exceptions, too
            shut_down()
            raise UserError(f"Ray does not start on this machine: {join_lines(error)}{_advise(str(error))}") from None
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _advise(error: str) -> str:
    """Return what helps against an error about load or Ray's folders: too long for a socket, another's, not known."""
    if "timed out" in error:
        return "; call again, once less runs on this machine"
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108, as Ray finds it
    if f"{folder.rstrip('/')}/ray" in error:
        return "; set RAY_TMPDIR to another folder, of few characters, that you can write"
    return "; set HOME to a folder that you can write" if "home directory" in error or "/.ray" in error else ""


def find_address(given: str | None) -> tuple[str, str | None]:
    """Return the origin of an address, for messages, and the given one, or $RAY_ADDRESS; None for a local Ray."""
    key, address = ("--address", given) if given else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"))
    return key, None if address in (None, "", "local") else address  # Ray's own word for one on this machine


def _join(key: str, address: str) -> None:
    found = _find_reachable(key, address)
    try:
        # With `auto`, not with an address, Ray sends this user's token if there is one.
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, job_config=Job())
    except Exception as error:
        ray.shutdown()
        hint = "; if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or ~/.ray/auth_token"
        raise UserError(f"{key}: cannot join {found}: {join_lines(error)}{hint}") from None
    try:
        _refuse_other_code(key)
    except BaseException:
        shut_down()
        raise


def _refuse_other_code(key: str) -> None:
    """Refuse a cluster some of whose nodes would train with other code of fedray than this process has."""

    def digest() -> str:  # a function within one is sent whole: a node may have no fedray, or another one
        import hashlib
        from importlib.util import find_spec
        from pathlib import Path

        spec, found = find_spec("fedray"), hashlib.sha256()
        if spec is None or spec.origin is None:
            return ""
        folder = Path(spec.origin).parent
        for file in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py")):
            found.update(f"{file} ".encode() + (folder / file).read_bytes())
        return found.hexdigest()

    here = digest()
    for node, there in ask_nodes(digest):
        if there != here:
            found = "has other code of fedray than this process" if there else "has no fedray"
            raise UserError(f"{key}: node {node} {found}; install the same on all nodes, in the Python that runs Ray")


def ask_nodes(task: Callable[..., T], *arguments: Any) -> list[tuple[str, T]]:
    """Call a function on each living node of the cluster; return the nodes' addresses and what it has returned."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    remote = ray.remote(num_cpus=0)(task)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    answers = [remote.options(scheduling_strategy=place).remote(*arguments) for place in places]
    return list(zip([node["NodeManagerAddress"] for node in nodes], ray.get(answers), strict=True))


def refuse_other_form(key: str, address: str | None) -> None:
    """Raise UserError, beginning with a key, if an argument is not the address of a cluster."""
    if address is None or re.fullmatch(r"auto|[^\s/]+:\d+", address):
        return
    hint = ""
    if "://" in address:
        hint = (
            "; a sweep's driver is on a node of the cluster: `ray job submit --address http://HOST:8265 "
            "--working-dir . -- fedray sweep FILE --address auto`"
        )
    raise UserError(f"{key}: found {truncate_repr(address)}; auto or HOST:PORT is required, as 10.0.0.1:6379{hint}")


def refuse_bad_address(address: str | None) -> None:
    """Raise UserError if nothing answers at the address of a cluster that is to be joined; see `use_cluster`."""
    key, address = find_address(address)
    if address is not None and not ray.is_initialized():
        _find_reachable(key, address)


def count_cpus() -> int:
    """Return the number of CPUs for a local Ray: no more than a container's quota and `taskset` allow."""
    return min(count_machine_cpus(), count_usable_cpus())


def _find_reachable(key: str, address: str) -> str:
    """Return the address of a cluster; for `auto` that of the Ray running here, or the one in Ray's address file.

    Refuse a port that does not answer at once, as that of a Ray that has ended; Ray itself would retry for minutes.
    """
    if address == "auto":
        with restate(f"{key}: cannot join auto", ConnectionError):
            address = find_running_address()
    refuse_other_form(key, address)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"{key}: cannot connect to {address}: {error}") from None
    return address


@check_arguments
def connect(address: str | None = None) -> None:
    """Start Ray, or join a cluster, until this process ends.

    Without it each `simulate` and each sweep starts and ends a Ray of its own, which takes seconds. Further calls do
    nothing.

    Args:
        address: `auto` or HOST:PORT of a cluster; None for $RAY_ADDRESS, or for a Ray on this machine if that is not
            set.

    Raises:
        UserError: the cluster cannot be joined.

    Examples:
        >>> fedray.connect()
    """
    refuse_other_form("connect: address", address)
    if ray.is_initialized():
        return
    kept = contextlib.ExitStack()
    kept.enter_context(use_cluster(address))
    atexit.register(kept.close)
