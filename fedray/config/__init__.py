"""A run's configuration: the whole, and its sections that are not chosen by name."""

from fedray.config.clients import Clients
from fedray.config.evaluation import Evaluation, Personal
from fedray.config.run import COMPONENTS, NUMERICS, PLAIN, RunConfig, find_component
from fedray.config.runtime import SMALLEST_SHARE, Runtime
from fedray.config.training import Training

__all__ = [
    "COMPONENTS",
    "NUMERICS",
    "PLAIN",
    "SMALLEST_SHARE",
    "Clients",
    "Evaluation",
    "Personal",
    "RunConfig",
    "Runtime",
    "Training",
    "find_component",
]
