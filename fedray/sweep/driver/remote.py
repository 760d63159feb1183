"""`fedray sweep --address ray://...`: the sweep's driver runs inside the cluster, as Tune's own does over Ray Client.

Such a driver cannot write into this folder, so the store and the checkpoints must be named: MLFLOW_TRACKING_URI and
FEDRAY_STORAGE are required, and passed on with FEDRAY_DATA. They travel as the driver's argument: Ray would write a
runtime environment, including the store's password, into its logs and its dashboard.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

import ray
from ray.exceptions import GetTimeoutError, RayError

from fedray.cluster.connection import use_cluster
from fedray.common.entry import redact_logs
from fedray.common.errors import UserError, redact
from fedray.datasets.base import get_data_dir
from fedray.sweep.driver.stages import run_file
from fedray.sweep.file.sweep import Sweep
from fedray.tracking.location import get_storage, store_uri

REQUIRED = ("MLFLOW_TRACKING_URI", "FEDRAY_STORAGE")
PASSED = (
    *REQUIRED,
    "FEDRAY_DATA",
    "FEDRAY_STORE_PATIENCE",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
ENDING = 120.0
"""Seconds that an interrupted driver has for its trials' checkpoints and the store."""


def run_in_cluster(
    sweep: Sweep, address: str, force: bool, max_concurrent: int | None, only: Sequence[str] = ()
) -> int:
    """Run a sweep's driver as a task of the cluster and print its output.

    Relative paths, including those in the sweep, are relative to this working directory, which the cluster has to see.

    Returns:
        The driver's exit code.

    Raises:
        UserError: a variable is missing, the cluster cannot be joined, or the driver refuses the sweep.
    """
    for name in REQUIRED:
        if not os.environ.get(name):
            raise UserError(f"{name}: is required with ray://, since the driver runs in the cluster and not here")
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    environment |= {"MLFLOW_TRACKING_URI": store_uri(), "FEDRAY_STORAGE": str(get_storage())}
    if "FEDRAY_DATA" in environment:
        environment["FEDRAY_DATA"] = str(get_data_dir().resolve())
    with use_cluster(address):
        task = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_drive)  # its process ends, with its secrets
        reference = task.remote(sweep, force, max_concurrent, list(only), environment, os.getcwd())
        try:
            code, message = ray.get(reference)
        except KeyboardInterrupt:
            ray.cancel(reference)
            with contextlib.suppress(GetTimeoutError, RayError):  # so that it saves its progress before it dies
                ray.get(reference, timeout=ENDING)
            raise
    if message:
        raise UserError(message)
    sys.stdout.flush()
    return int(code)


def _drive(
    sweep: Sweep,
    force: bool,
    max_concurrent: int | None,
    only: list[str],
    environment: dict[str, str],
    folder: str,
) -> tuple[int, str]:
    """Run as the driver in the cluster; returns the exit code, or the message of a UserError."""
    os.environ |= environment
    redact_logs()
    with contextlib.suppress(OSError):  # the folder is not visible here: relative paths will be refused by name
        os.chdir(folder)
    try:
        return run_file(sweep, sweep.name, force, only, max_concurrent, "auto"), ""
    except UserError as error:
        return 2, redact(str(error))
