"""`runtime.gpus_per_actor: auto`: the memory that one client needs decides how many actors share a GPU."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import ray
from ray.exceptions import RayTaskError

from fedray.cluster.connection import use_cluster
from fedray.cluster.resources import list_nodes, refuse_infeasible
from fedray.common.errors import Diverged, UserError
from fedray.config import SMALLEST_SHARE, RunConfig, Runtime
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import Peak, measure_others, measure_peak
from fedray.engine.process.residence import KEPT
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state

log = logging.getLogger("fedray")
USABLE = 0.9
"""Part of a GPU's memory to use; the rest is for fragmentation."""
KIND = "accelerator_type:"
"""Prefix of the resource by which Ray names the GPU of a node."""
STEPS = 4
"""Number of local steps to measure; later ones need no more memory."""

Measure = Callable[[bytes, Dataset], Peak]
"""Measures a packed configuration on its data."""


class Packing:
    """Fractions of a GPU for the runs of one call; each kind of run is measured once.

    Args:
        measure: function called in a process of the cluster that has a GPU to itself.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._measure = measure or measure_one_client
        self._fractions: dict[str, float] = {}

    def resolve_auto_gpus(self, run: RunConfig, data: Dataset | ray.ObjectRef[Dataset]) -> RunConfig:
        """Return the run with a number for `auto`; Ray must be running.

        Args:
            run: a configuration; without `auto` it is returned as it is.
            data: its data set, or the reference of one in the object store.

        Raises:
            UserError: there is no GPU to measure on, or not even one client fits.
        """
        if run.runtime.gpus_per_actor != "auto":
            return run
        kind = _get_kind(run)
        if kind not in self._fractions:
            self._fractions[kind] = compute_fraction(self._measure_alone(run, data))
        runtime = run.runtime.model_copy(update={"gpus_per_actor": self._fractions[kind]})
        return run.model_copy(update={"runtime": runtime})

    def knows(self, run: RunConfig) -> bool:
        """Return True if `resolve_auto_gpus` measures nothing for a run."""
        return run.runtime.gpus_per_actor != "auto" or _get_kind(run) in self._fractions

    def _measure_alone(self, run: RunConfig, data: Dataset | ray.ObjectRef[Dataset]) -> Peak:
        nodes = [node for node in list_nodes() if node.get("GPU", 0) >= 1]
        if not nodes:
            raise UserError("runtime.gpus_per_actor: found auto, and no node of the cluster has a GPU to measure on")
        return max((self._measure_on(run, data, kind) for kind in list_kinds(nodes)), key=compute_fraction)

    def _measure_on(self, run: RunConfig, data: Dataset | ray.ObjectRef[Dataset], kind: str) -> Peak:
        """Measure on a GPU of one kind; an empty one stands for any."""
        # The process ends with its task, and frees everything.
        task = ray.remote(
            num_gpus=1,
            num_cpus=run.runtime.cpus_per_actor,
            max_calls=1,
            resources={kind: SMALLEST_SHARE} if kind else {},
        )(self._measure)
        named = kind.removeprefix(KIND) or "GPU"
        log.info("%s with %s: measuring one client on a %s of its own", run.algorithm.name, run.model.name, named)
        try:
            found: Peak = ray.get(task.remote(run.pack(), data))
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, UserError) else error) from None
        log.info(
            "%s with %s: one client takes %.2f of %.2f GiB of a %s%s: %g GPUs per actor",
            run.algorithm.name,
            run.model.name,
            found.used / 2**30,
            found.total / 2**30,
            named,
            f", others hold {found.others / 2**30:.2f}" if found.others else "",
            compute_fraction(found),
        )
        return found


def list_kinds(nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the resources that name the GPUs of nodes, each kind once; an empty name for nodes that name none."""
    return sorted({next((name for name in node if name.startswith(KIND)), "") for node in nodes})


def compute_fraction(measured: Peak) -> float:
    """Return the fraction of a GPU per actor, in Ray's units of 1/10,000, rounded down so that all actors fit.

    Actors also keep shards and states: all of them if there is room, else at most KEPT of their share.
    """
    room = USABLE * measured.total - measured.others
    everything = room / (measured.used + measured.kept)
    limited = (room - KEPT * measured.total) / measured.used
    actors = max(int(max(everything, limited)), 1)
    return int(10_000 / actors) / 10_000


def measure_one_client(config: bytes, data: Dataset) -> Peak:
    """Train the client with most samples for a few steps, test the model, and measure peak memory."""
    others = measure_others()  # before this process takes memory of its GPU
    problem = Problem.build(RunConfig.unpack(config), data)
    simulation = Simulation(shorten(problem), InlineBackend())
    with contextlib.suppress(Diverged):  # the run itself will report that; the memory is valid
        simulation.step()
    return measure_peak(others, count_kept(problem, simulation))


def count_kept(problem: Problem, trained: Simulation) -> int:
    """Return the bytes of all shards and all clients' states, if every client's are as large as a trained one's."""
    states = [sum(v.nbytes for v in load_state(state).values()) for state in trained.state.clients.values()]
    inputs, labels = problem.data.x_train, problem.data.y_train
    shards = len(problem.shards.indices) * (inputs[:1].nbytes + labels[:1].nbytes)
    return shards + len(problem.shards) * max(states, default=0)


def shorten(problem: Problem) -> Problem:
    """Return a problem with one round of a few steps of the client with most samples, in one process."""
    run = problem.config
    cohort = (int(problem.shards.sizes.argmax()),)
    # Copied, not parsed: parsing refuses methods that need every client in each round.
    config = run.model_copy(
        update={
            "clients": run.clients.model_copy(update={"cohorts": (cohort,)}),
            "training": run.training.model_copy(update={"rounds": 1, "local_epochs": None, "local_steps": STEPS}),
            "evaluation": run.evaluation.model_copy(update={"every": 1, "personal": None}),
            "runtime": run.runtime.inline,
        }
    )
    return replace(problem, config=config, tests=None, unseen=None)


def _get_kind(run: RunConfig) -> str:
    """Return a key that is equal for runs needing the same memory: values of hyper-parameters do not matter.

    The split among clients matters only if a batch is a client's whole shard.
    """
    training = run.training
    dealt = [run.partition.list_options(), run.clients.model_dump(mode="json"), run.seed]
    return json.dumps(
        [
            run.data.list_options(),
            run.model.list_options(),
            run.algorithm.name,
            training.batch_size,
            training.precision,
            run.channels_last,
            [probe.list_options() for probe in run.evaluation.probes],
            dealt if training.batch_size == "full" else None,
        ]
    )


class Placement:
    """Sets numbers for `auto` GPUs and refuses runs that can never be placed, for the runs of one call."""

    def __init__(self) -> None:
        self._packing = Packing()
        self._fit: set[Runtime] = set()

    def resolve(self, runs: Sequence[tuple[RunConfig, Dataset]]) -> list[RunConfig]:
        """Return the runs with numbers for `gpus_per_actor: auto`; Ray must be running.

        Args:
            runs: configurations with their data sets.

        Returns:
            The same configurations in the same order.

        Raises:
            UserError: the actors of a run can never be placed.
        """
        resolved = [self._packing.resolve_auto_gpus(run, data) for run, data in runs]
        if new := dict.fromkeys(run.runtime for run in resolved if run.runtime not in self._fit):
            nodes = list_nodes()
            for runtime in new:
                refuse_infeasible(runtime, nodes)
            self._fit |= new.keys()
        return resolved

    def knows(self, run: RunConfig, data: Dataset) -> bool:
        """Return True if `resolve` would neither measure nor refuse anything for a run."""
        return self._packing.knows(run) and self._packing.resolve_auto_gpus(run, data).runtime in self._fit


@contextlib.contextmanager
def prepare_ray(runs: Sequence[tuple[RunConfig, Dataset]]) -> Iterator[list[RunConfig]]:
    """Provide a Ray on which every run fits, for the duration of a block: $RAY_ADDRESS, or else a local one.

    Args:
        runs: configurations with their data sets.

    Yields:
        The same configurations in the same order, with numbers where `gpus_per_actor` was `auto`.

    Raises:
        UserError: the cluster cannot be joined, or the actors of a run can never be placed.
    """
    with use_cluster():
        yield Placement().resolve(runs)
