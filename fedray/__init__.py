"""fedray: federated-learning sweeps on Ray, tracked in MLflow.

`simulate(config)` is one run; the command line is `fedray --help`. Importing this package imports nothing else: each
name is loaded when it is first used (PEP 562), so that what needs no PyTorch does not wait for it. MLflow reads as it
is imported whether it may send statistics of its use.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.algorithms.base import Algorithm, Client, PerClient, Sum
    from fedray.api.results import load, log_model, results, run_sweep
    from fedray.api.run import simulate
    from fedray.cells.status import STOP
    from fedray.cluster.connection import connect
    from fedray.common.errors import Diverged, UserError
    from fedray.engine.result import Result

__version__ = "0.3.0.dev0"

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

_HOMES = {
    "Algorithm": "fedray.algorithms.base",
    "Client": "fedray.algorithms.base",
    "PerClient": "fedray.algorithms.base",
    "Sum": "fedray.algorithms.base",
    "simulate": "fedray.api.run",
    "STOP": "fedray.cells.status",
    "Diverged": "fedray.common.errors",
    "UserError": "fedray.common.errors",
    "Result": "fedray.engine.result",
    "connect": "fedray.cluster.connection",
    "load": "fedray.api.results",
    "log_model": "fedray.api.results",
    "results": "fedray.api.results",
    "run_sweep": "fedray.api.results",
}

__all__ = [
    "STOP",
    "Algorithm",
    "Client",
    "Diverged",
    "PerClient",
    "Result",
    "Sum",
    "UserError",
    "__version__",
    "connect",
    "load",
    "log_model",
    "results",
    "run_sweep",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedray' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
