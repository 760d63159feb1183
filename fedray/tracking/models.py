"""A trained model in MLflow, as a graph and its numbers, so that loading it unpickles nothing."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedray.common.errors import UserError, join_lines
from fedray.tracking.store import open_store, translate_refusals

NAME = "model"
"""Name of the model in MLflow."""


def log_model(run: str, model: nn.Module, example: np.ndarray) -> str:
    """Log a model as MLflow's PyTorch flavour does with `torch.export`: `models:/ID`, listed under its run.

    Return that address. The model is in evaluation mode, on the CPU; example: at least two inputs as it takes them,
    `(n, ...)`, whose number may differ later. Raises UserError if the model cannot be exported (its `forward` branches
    on values, say), or the store refuses it.
    """
    import mlflow.pytorch  # here: it takes a second to import
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    client, experiment = open_store()
    requirements = [f"{package}=={version(package)}" for package in ("torch", "numpy")]
    with translate_refusals():
        for left in client.search_logged_models([experiment], f"source_run_id = '{run}'"):
            if left.status == LoggedModelStatus.PENDING:  # of a killed call
                client.delete_logged_model(left.model_id)
        logged = client.create_logged_model(experiment, name=NAME, source_run_id=run)
    status = LoggedModelStatus.FAILED
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / NAME
            mlflow.pytorch.save_model(
                model,
                str(path),
                mlflow_model=Model(
                    artifact_path=logged.artifact_location,
                    model_uuid=logged.model_id,
                    run_id=run,
                    model_id=logged.model_id,
                ),
                input_example=example,
                serialization_format="pt2",
                pip_requirements=requirements,
            )
            with torch.no_grad():
                mlflow.pytorch.load_model(str(path))(torch.from_numpy(example[[0, 1, 0]]))  # MLflow may fix the number
            with translate_refusals():
                client.log_model_artifacts(logged.model_id, str(path))
                client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
        status = LoggedModelStatus.READY
    except UserError:
        raise
    except Exception as error:  # torch.export raises errors of many classes
        raise UserError(f"log_model: {type(model).__name__} cannot be exported: {join_lines(error)}") from None
    finally:
        client.finalize_logged_model(logged.model_id, status)
    return f"models:/{logged.model_id}"
