"""`fedray run`: one run, logged to MLflow as a cell without a sweep."""

from fedray.api import simulate
from fedray.config import RunConfig
from fedray.errors import Diverged
from fedray.problem import Problem
from fedray.simulation import Result
from fedray.tracking import Tracker, picture, tags_of
from fedray.worker import refuse_missing_device


def tracked(config: RunConfig, label: str) -> Result:
    """Run, and log rows and outcome. Raises what `simulate` raises, after the run in MLflow has its status."""
    data = config.data.load()
    problem = Problem.build(config, data)
    problem.network("cpu")  # what cannot run is refused before there is a run in MLflow
    if config.runtime.backend == "inline":
        refuse_missing_device(config.runtime)
    tracker = Tracker()
    run_id, _ = tracker.open_cell(config.cell(data.digest), label, config.resolved(), tags_of(config),
                                  picture(problem), parent=None, again=False)
    try:
        result = simulate(config)
    except Diverged as error:
        tracker.close_cell(run_id, "diverged", [], {"diverged_round": error.round}, str(error))
        raise
    except BaseException as error:
        tracker.close_cell(run_id, "failed", [], {}, f"{type(error).__name__}: {error}")
        raise
    tracker.log_rows(run_id, result.history)
    tracker.close_cell(run_id, "finished", result.history, result.summary())
    return result
