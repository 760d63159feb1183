"""Starting a Ray of one's own on this machine, or joining a cluster."""

import contextlib
import logging
import os
from collections.abc import Iterator

import ray

from fedray.errors import UserError


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Ray for the duration of a block: `address` (or $RAY_ADDRESS), else a local one bound to 127.0.0.1.

    Raises UserError where the address cannot be reached.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield  # the caller's own
        return
    try:
        if address is None:
            ray.init("local", _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False,
                     logging_level=logging.ERROR)
        else:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--address: {address} cannot be reached: {str(error).splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()
