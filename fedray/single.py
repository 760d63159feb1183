"""`fedray run`: one run, logged to MLflow as a cell without a sweep."""

import contextlib
import traceback
from dataclasses import replace

from fedray.api import run_problem
from fedray.config import RunConfig
from fedray.cuda import refuse_missing
from fedray.errors import Diverged
from fedray.problem import Problem
from fedray.profile import Profile
from fedray.signals import sigterm_as_interrupt
from fedray.simulation import Result
from fedray.tracking import CellRun, Tracker, picture, tags_of


def tracked(config: RunConfig, label: str, profile: Profile | None = None) -> Result:
    """Run, and log rows as they come and the outcome. Raises what the run raises, once the run has its status."""
    data = config.data.load()
    problem = Problem.build(config, data)
    problem.network("cpu")  # what cannot run is refused before there is a run in MLflow
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        if config.runtime.backend == "inline":
            refuse_missing(config.runtime.torch_device)
        else:
            from fedray.backend.ray import cluster_nodes, refuse_infeasible
            from fedray.cluster import cluster
            from fedray.packing import Packing

            stack.enter_context(cluster())
            config = Packing().settled(config, data)
            problem = replace(problem, config=config)
            refuse_infeasible(config.runtime, cluster_nodes())
        tracker = Tracker()
        log = CellRun()
        tracker.open_cell(log, config.cell(data.digest), label, config.resolved(), tags_of(config), parent=None,
                          again=False)
        tracker.log_picture(log, picture(problem))
        try:
            result = run_problem(problem, evaluated=lambda row: tracker.log_rows(log, [row]), profile=profile)
        except Diverged as error:
            tracker.close_cell(log, "diverged", {"diverged_round": error.round}, str(error))
            raise
        except KeyboardInterrupt:
            tracker.close_cell(log, "interrupted", {}, "the run was interrupted")
            raise
        except BaseException as error:
            tracker.close_cell(log, "failed", {"traceback": traceback.format_exc()},
                               f"{type(error).__name__}: {error}")
            raise
        else:
            tracker.close_cell(log, "finished", result.summary() | ({} if profile is None else {"profile": profile}))
        finally:
            tracker.close()
    return result
