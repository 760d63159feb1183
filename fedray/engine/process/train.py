"""Training of some clients in one process, and the sum of what they upload."""

from collections.abc import Iterator, Sequence

from fedray.client import LocalClient
from fedray.common.explain import explain, explain_error
from fedray.common.vectors import Vectors
from fedray.engine.exact_sum import BLOCK
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.process.lanes import Lanes
from fedray.engine.process.reduction import Reduction
from fedray.engine.process.worker import Worker
from fedray.engine.training.batches import AHEAD, Drawn, draw_ahead
from fedray.engine.training.local_training import Watch
from fedray.engine.training.stack import ClientResult, agree, can_stack, copy_rows, train_stack
from fedray.models.stacked import Unstackable
from fedray.probes.probes import Steps, probe_client


@explain("training")
def train(worker: Worker, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Reply:
    """Train the clients of `tasks` and add up their uploads."""
    there, reduction, reply = worker.to_device(broadcast), Reduction(), Reply()
    states: dict[int, Vectors] = {}
    results: list[ClientResult] = []
    most = 1 if broadcast.measured else min(AHEAD, -(-BLOCK // len(there.theta)))
    if broadcast.measured:
        trained = _train_measured(worker, there, tasks, reduction, reply)
    elif worker.lanes is not None:
        trained = _train_in_lanes(worker, worker.lanes, there, tasks)
    else:
        trained = (result for part in _iter_parts(worker, there, tasks) for result in _train_part(worker, there, part))
    for result in trained:
        results.append(result)
        states |= zip([task.client for task in result.tasks], copy_rows(result.state, len(result.tasks)), strict=True)
        if sum(len(result.tasks) for result in results) >= most:
            _reduce(results, reduction, broadcast.cohort, reply)
    _reduce(results, reduction, broadcast.cohort, reply)
    residence = worker.residence if worker.keeps_states else None
    groups = [reply.each] if residence else [reply.each, states]
    tensors = [tensor for group in groups for vectors in group.values() for tensor in vectors.values()]
    diverged, reply.sums, copies = reduction.finish(tensors)
    reply.diverged |= diverged
    left = iter(copies)
    reply.each, *kept = (
        {i: Vectors({name: next(left) for name in vectors}) for i, vectors in group.items()} for group in groups
    )
    if residence is None:
        reply.states = {**kept[0]}
    else:
        reply.states = {i: residence.keep(state) if state else state for i, state in states.items()}
    worker.network.check_module()
    return reply


def _train_measured(
    worker: Worker, there: Broadcast, tasks: Sequence[ClientTask], reduction: Reduction, reply: Reply
) -> Iterator[ClientResult]:
    """Yield trained clients one by one, and measure each with the probes once it is added up."""
    algorithm, tested = worker.problem.config.algorithm, worker.problem.evaluated["test"]
    for task in map(worker.task_to_device, tasks):
        steps = Steps(worker.probes, algorithm)
        c, result = _train_alone(worker, there, task, None, steps if steps.probes else None)
        yield result
        reply.diverged |= reduction.settle()
        if task.client not in reply.diverged:
            with worker.key_draws("probe", there.round, task.client):
                reply.probes[task.client] = probe_client(
                    worker.probes, c, algorithm, worker.test_samples, tested, steps
                )


def _train_in_lanes(
    worker: Worker, lanes: Lanes, there: Broadcast, tasks: Sequence[ClientTask]
) -> Iterator[ClientResult]:
    """Yield trained clients, the longest first."""
    trainer, config, shards = worker.trainer, worker.problem.config, worker.problem.split.train
    ordered = sorted(tasks, key=lambda task: -trainer.count(len(shards[task.client])).steps)
    drawn_ahead = draw_ahead(config.training, trainer.shards, config.seed, there, ordered)
    yield from lanes.train(
        trainer,
        there,
        drawn_ahead,
        worker.task_to_device,
        lambda error, task: explain_error(error, f"client {task.client} ({len(shards[task.client])} samples)"),
    )


def _iter_parts(
    worker: Worker, broadcast: Broadcast, tasks: Sequence[ClientTask]
) -> Iterator[list[tuple[ClientTask, Drawn | None]]]:
    """Yield the clients that train together, with their batches as they are drawn: stacks, or one client."""
    trainer, config, augmented = worker.trainer, worker.problem.config, bool(worker.train_samples.augment)
    stacked = worker.stacking.size > 1 and not augmented and can_stack(trainer, broadcast)
    gathered = worker.train_samples if worker.residence is None and not augmented and not stacked else None
    if stacked:  # their order changes no sum; a method may ask who is new
        tasks = sorted(tasks, key=lambda task: (bool(task.state), len(trainer.shards[task.client])))
    stacks = -(-len(tasks) // worker.stacking.size)
    size = -(-len(tasks) // max(stacks, 1))  # about equal: 50 and 50, not 64 and 36
    part: list[tuple[ClientTask, Drawn | None]] = []
    for given, drawn in draw_ahead(config.training, trainer.shards, config.seed, broadcast, tasks, gathered):
        task = worker.task_to_device(given)
        alone = not stacked or drawn is None or not drawn.order
        if part and (alone or len(part) >= size or bool(part[0][0].state) != bool(task.state)):
            yield part
            part = []
        part.append((task, drawn))
        if alone:
            yield part
            part = []
    if part:
        yield part


def _train_part(
    worker: Worker, there: Broadcast, part: Sequence[tuple[ClientTask, Drawn | None]]
) -> Iterator[ClientResult]:
    """Train some clients, as a stack if there are several and nothing is against it."""
    stacking, name, stacked = worker.stacking, worker.trainer.algorithm.name, list[ClientResult]()
    if len(part) > 1 and stacking.size > 1:
        try:
            with explain(f"runtime.stack: {len(part)} clients in a stack (1 is each alone)"):
                stacked = train_stack(worker.trainer, stacking, there, part)
        except Unstackable as reason:
            stacking.stop(str(reason))
    sizes = {len(batch) for _, drawn in part if drawn is not None for batch in drawn.order}
    kind = name, len(part), len(sizes) > 1
    if stacked and kind in stacking.compared:
        yield from stacked
        return
    alone = [_train_alone(worker, there, task, drawn)[1] for task, drawn in part]
    if stacked:
        stacking.compared.add(kind)
        if not agree(stacked, alone):
            stacking.stop(f"{name} has other bits in a stack")
    yield from alone


def _train_alone(
    worker: Worker, there: Broadcast, task: ClientTask, drawn: Drawn | None, watch: Watch | None = None
) -> tuple[LocalClient, ClientResult]:
    with explain(f"client {task.client} ({len(worker.problem.split.train[task.client])} samples)"):
        c, uploads = worker.trainer.train(there, task, watch, drawn)
    return c, ClientResult([task], c.loss, [c.steps], uploads, c.state)


def _reduce(results: list[ClientResult], reduction: Reduction, cohort: int, reply: Reply) -> None:
    """Add up what some clients upload, and forget the rest of it."""
    for result in results:
        reply.each |= reduction.add(result, cohort)
        reply.sent += result.count_bytes()
    results.clear()
