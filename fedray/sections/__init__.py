"""The sections of a run's configuration that are not chosen by name: clients, training, evaluation and runtime."""

from fedray.sections.clients import Clients
from fedray.sections.evaluation import Evaluation, Personal
from fedray.sections.runtime import SMALLEST_SHARE, Runtime
from fedray.sections.training import Training

__all__ = ["SMALLEST_SHARE", "Clients", "Evaluation", "Personal", "Runtime", "Training"]
