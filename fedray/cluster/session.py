"""A Ray that stays up for several calls, for notebooks and scripts."""

import atexit
import contextlib

import ray

from fedray.cluster.connection import refuse_other_form, use_cluster
from fedray.common.calls import check_arguments


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
    refuse_other_form("connect", address)
    if ray.is_initialized():
        return
    kept = contextlib.ExitStack()
    kept.enter_context(use_cluster(address))
    atexit.register(kept.close)
