"""fedray: federated-learning sweeps on Ray, tracked in MLflow.

`simulate(config)` is one run; the command line is `fedray --help`.
"""

from fedray.api import simulate
from fedray.errors import Diverged, UserError
from fedray.simulation import Result

__all__ = ["Diverged", "Result", "UserError", "simulate"]
