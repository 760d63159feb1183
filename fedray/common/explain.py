"""Errors of PyTorch and Python that a user can fix: out of memory, and an operation without a deterministic kernel."""

import contextlib
from collections.abc import Iterator

import torch

from fedray.common.errors import UserError

LESS_MEMORY = "lower training.batch_size, or raise runtime.cpus_per_actor or gpus_per_actor: fewer actors on a node"


@contextlib.contextmanager
def explain(what: str) -> Iterator[None]:
    """Turn errors that a user can fix into UserErrors, as `explain_error`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        explain_error(error, what)
        raise


def explain_error(error: Exception, what: str) -> None:
    """Raise a UserError for an error that a user can fix: out of memory (CPU or GPU), or no deterministic kernel."""
    if "does not have a deterministic implementation" in str(error):
        raise UserError(
            f"runtime.deterministic: {str(error).split()[0]} has no deterministic kernel; set it to "
            "false, and runs differ in their last bits"
        ) from None
    memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)  # of a CPU
    if not memory:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise UserError(f"{what}: out of memory: {str(error).splitlines()[0]}; {LESS_MEMORY}") from None
