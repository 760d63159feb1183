"""One run from Python: `fedray.simulate(config)` is what `fedray run` does."""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.common.calls import check_arguments
from fedray.common.errors import UserError, truncate_repr
from fedray.common.whole_files import lock_folder
from fedray.common.yaml_files import load_yaml, locate, locate_folder
from fedray.config import RunConfig
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.device import isolate_run
from fedray.engine.result import Result
from fedray.engine.server.profile import Profile
from fedray.sweep.single import Evaluated, run_problem

NAME = 250
"""Maximum number of characters of a run's name."""


@check_arguments
@isolate_run()
def simulate(
    config: Mapping[str, Any] | RunConfig | str | Path,
    *,
    track: str | None = None,
    checkpoints: str | Path | None = None,
    evaluated: Evaluated | None = None,
    profile: Profile | None = None,
    data: Dataset | None = None,
    progress: bool | None = None,
) -> Result:
    """Train one run, from its start or its newest checkpoint to its end.

    A run without a GPU begins in this process. With `runtime.actors: auto` it goes on in client actors, on all free
    CPUs, once that pays; with a number, these actors train from the start. A local Ray is started for them unless one
    is running; `fedray.connect()` keeps one for all calls and accepts a cluster's address, as does `RAY_ADDRESS`.

    Your settings of PyTorch (`no_grad`, autocast, default device and dtype) change no number and are restored at the
    end. Concurrent calls in threads run one at a time.

    Args:
        config: a run's YAML file, or its contents as a nested mapping (docs/configuration.md).
        track: name of the run in MLflow; None: it is not logged there.
        checkpoints: directory for the checkpoints of this configuration, read and written; None: neither.
        evaluated: called with a copy of the row of each newly evaluated round. If it returns `fedray.STOP`, the run
            ends after this round, and its result is kept; any answer but None is refused. With `checkpoints`, another
            call goes on from there. It may call `simulate`, but not wait for a call in another thread, which waits for
            this one.
        profile: filled with the time of each part of a round.
        data: the data set that `config` names, if it is loaded already.
        progress: show a bar on standard error; None: on a terminal, and in a notebook with ipywidgets.

    Returns:
        The evaluated rounds, the final parameters and the whole state; of the rounds made if `evaluated` ended the run.

    Raises:
        UserError: the configuration, data, model, cluster or store cannot be used, or `checkpoints` belongs to another
        configuration; nothing is logged in this case.
        Diverged: numbers went wrong in a round.

    Examples:
        >>> result = fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": "fedavg"})
        >>> result.summary()["last10_test_accuracy"] > 90
        True
    """
    if isinstance(config, str | Path):
        config = load_yaml(locate("simulate: config", str(config)))
    if track is not None and not (track.strip() and track.isprintable() and len(track) <= NAME):
        found = truncate_repr(track)
        raise UserError(f"simulate: track: found {found}; up to {NAME} printable characters are required")
    directory = None if checkpoints is None else locate_folder("simulate: checkpoints", str(checkpoints))
    parsed = RunConfig.parse(config)
    parsed.refuse_stale()
    if data is not None:
        parsed.data.refuse_other(data)
        data = replace(data)  # its digest is taken anew: the arrays may have changed
    data = data or load_data(parsed.data)
    cell = "" if track is None and checkpoints is None else parsed.hash_cell(data.digest)
    tell: Evaluated = (lambda row: None) if evaluated is None else evaluated
    return run_problem(Problem.build(parsed, data), cell, track, _hold(directory), tell, profile, progress)


@contextlib.contextmanager
def _hold(folder: Path | None) -> Iterator[tuple[Path | None, None]]:
    """Yield a folder of checkpoints, locked for the duration of a block, as `run_problem` takes it.

    Raises UserError if another call has it.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                raise UserError(
                    f"simulate: checkpoints: another call trains with {folder}; wait for it, or name another one"
                ) from None
            except OSError:  # said once it is written to
                pass
        yield folder, None
