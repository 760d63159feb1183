"""`fedray sweep --address ray://...`: the sweep's driver runs inside the cluster, as Tune's own does over Ray Client.

A driver there cannot write into this folder, so the store and the checkpoints must be named: MLFLOW_TRACKING_URI and
FEDRAY_STORAGE are required, and passed on with FEDRAY_DATA. They travel as the driver's argument: Ray would write a
runtime environment, with the store's password in it, into its logs and its dashboard.
"""

import os
import sys
from collections.abc import Sequence

import ray

from fedray.cluster.connection import cluster
from fedray.common.errors import UserError
from fedray.sweep.grid import Sweep
from fedray.sweep.run import drive, planned

REQUIRED = ("MLFLOW_TRACKING_URI", "FEDRAY_STORAGE")
PASSED = (
    *REQUIRED,
    "FEDRAY_DATA",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)


def sweep_in_cluster(
    sweep: Sweep, address: str, force: bool, max_concurrent: int | None, only: Sequence[str] = ()
) -> int:
    """Run a sweep's driver as a task of the cluster and print what it prints; its exit code."""
    for name in REQUIRED:
        if not os.environ.get(name):
            raise UserError(f"{name}: is required with ray://, since the driver runs in the cluster and not here")
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    with cluster(address):
        reference = ray.remote(num_cpus=0, max_retries=0)(_drive).remote(
            sweep.model_dump(mode="json"), force, max_concurrent, env, list(only)
        )
        try:
            code, message = ray.get(reference)
        except KeyboardInterrupt:
            ray.cancel(reference)
            raise
    if message:
        raise UserError(message)
    sys.stdout.flush()
    return int(code)


def _drive(
    sweep: dict[str, object], force: bool, max_concurrent: int | None, env: dict[str, str], only: list[str]
) -> tuple[int, str]:
    os.environ |= env
    loaded = Sweep.model_validate(sweep)
    try:
        return drive(planned(loaded, loaded.name, force, only), max_concurrent, "auto"), ""
    except UserError as error:
        return 2, str(error)
