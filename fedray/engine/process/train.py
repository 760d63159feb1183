"""Training of some clients in one process, and the sum of what they upload."""

from collections.abc import Iterator, Sequence

from fedray.common.errors import warn_once
from fedray.common.vectors import Vectors
from fedray.engine.exact_sum import BLOCK
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.process.lanes import Lanes
from fedray.engine.process.reduction import ClientResult, Reduction
from fedray.engine.process.worker import Worker, explain, explain_error, is_out_of_memory
from fedray.engine.training.batches import AHEAD, Drawn, draw_ahead
from fedray.engine.training.local_training import Watch
from fedray.engine.training.stack import TrainedStack, agree, can_stack, copy_rows, train_stack
from fedray.models.stacked import Unstackable
from fedray.probes.probes import Steps, probe_client


def train(worker: Worker, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Reply:
    """Train the clients of `tasks` and add up their uploads."""
    config, there = worker.problem.config, worker.to_device(broadcast)
    reduction, reply = Reduction(), Reply()
    states: dict[int, Vectors] = {}
    results: list[ClientResult] = []
    most = 1 if broadcast.measured else min(AHEAD, -(-BLOCK // len(there.theta)))
    lanes = None if broadcast.measured else worker.lanes
    for result in _train_in_lanes(worker, lanes, there, tasks) if lanes is not None else ():
        results.append(result)
        states[result.tasks[0].client] = result.state
        if len(results) >= most:
            _reduce(results, reduction, broadcast.cohort, reply)
    for part in _iter_parts(worker, broadcast, tasks) if lanes is None else ():
        steps = Steps(worker.probes, config.algorithm) if broadcast.measured else None
        for trained in _train_part(worker, there, part, steps if steps and steps.probes else None):
            c, own = trained.c, [task.client for task in trained.tasks]
            results.append(ClientResult(trained.tasks, c.loss, trained.steps, trained.uploads, c.state))
            states |= zip(own, copy_rows(c.state, len(own)), strict=True)
            if sum(len(result.tasks) for result in results) >= most:
                _reduce(results, reduction, broadcast.cohort, reply)
            if steps:
                reply.diverged |= reduction.settle()
                if own[0] not in reply.diverged:
                    tested = worker.problem.evaluated["test"]
                    with worker.key_draws("probe", broadcast.round, own[0]):
                        reply.probes[own[0]] = probe_client(
                            worker.probes, c, config.algorithm, worker.test_samples, tested, steps
                        )
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


def _train_in_lanes(
    worker: Worker, lanes: Lanes, there: Broadcast, tasks: Sequence[ClientTask]
) -> Iterator[ClientResult]:
    """Yield trained clients, the longest first."""
    trainer, config, shards = worker.trainer, worker.problem.config, worker.problem.split.train
    ordered = sorted(tasks, key=lambda task: -trainer.count(len(shards[task.client])).steps)
    drawn_ahead = draw_ahead(config.training, trainer.shards, config.seed, there, ordered)

    given = ((worker.task_to_device(task), drawn) for task, drawn in drawn_ahead)
    yield from lanes.train(
        trainer,
        there,
        given,
        lambda error, task: explain_error(error, f"client {task.client} ({len(shards[task.client])} samples)"),
    )


def _iter_parts(
    worker: Worker, broadcast: Broadcast, tasks: Sequence[ClientTask]
) -> Iterator[list[tuple[ClientTask, Drawn | None]]]:
    """Yield the clients that train together, with their batches as they are drawn: stacks, or one client."""
    trainer, config, augmented = worker.trainer, worker.problem.config, bool(worker.train_samples.augment)
    stacked = worker.stacking.size > 1 and not augmented and can_stack(trainer, broadcast)
    gathered = worker.train_samples if worker.residence is None and not augmented and not stacked else None
    if stacked:  # their order changes no sum
        apart = not worker.stacking.mixes
        tasks = sorted(tasks, key=lambda task: (apart and bool(task.state), len(trainer.shards[task.client])))
    stacks = -(-len(tasks) // worker.stacking.size)
    size = -(-len(tasks) // max(stacks, 1))  # about equal: 50 and 50, not 64 and 36
    part: list[tuple[ClientTask, Drawn | None]] = []
    for given, drawn in draw_ahead(config.training, trainer.shards, config.seed, broadcast, tasks, gathered):
        task = worker.task_to_device(given)
        alone = not stacked or drawn is None or not drawn.order
        other = not worker.stacking.mixes and bool(part) and bool(part[0][0].state) != bool(task.state)
        if part and (alone or other or len(part) >= size):
            yield part
            part = []
        part.append((task, drawn))
        if alone:
            yield part
            part = []
    if part:
        yield part


def _train_part(
    worker: Worker, there: Broadcast, part: Sequence[tuple[ClientTask, Drawn | None]], watch: Watch | None = None
) -> Iterator[TrainedStack]:
    """Train some clients, as stacks where there are several and nothing is against it."""
    trainer, stacking, waiting = worker.trainer, worker.stacking, [part]
    name = trainer.algorithm.name
    while waiting:
        part, size = waiting.pop(0), stacking.size
        if 1 < size < len(part):
            waiting[:0] = [part[:size], part[size:]]
            continue
        stacked: list[TrainedStack] = []
        if len(part) > 1 and size > 1:
            try:
                stacked = train_stack(trainer, stacking, there, part)
            except Unstackable as reason:
                groups = [[given for given in part if bool(given[0].state) is kept] for kept in (False, True)]
                if all(groups):  # it needs to know who is new: from now on they have stacks of their own
                    stacking.mixes, waiting[:0] = False, groups
                    continue
                stacking.stop(str(reason))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    explain_error(error, "a stack")
                    raise
                stacking.size = size // 2
                warn_once(f"runtime.stack: out of memory with {size} clients in a stack; now there are {stacking.size}")
                waiting.insert(0, part)
                continue
        sizes = {len(batch) for _, drawn in part if stacked and drawn is not None for batch in drawn.order}
        kind = name, len(part), len(sizes) > 1
        if stacked and kind in stacking.compared:
            yield from stacked
            continue
        alone: list[TrainedStack] = []
        for task, drawn in part:
            with explain(f"client {task.client} ({len(worker.problem.split.train[task.client])} samples)"):
                c, uploads = trainer.train(there, task, watch, drawn)
            alone.append(TrainedStack([task], c, [c.steps], uploads))
        if stacked:
            stacking.compared.add(kind)
            if not agree(stacked, alone):
                stacking.stop(f"{name} has other bits in a stack")
        yield from alone


def _reduce(results: list[ClientResult], reduction: Reduction, cohort: int, reply: Reply) -> None:
    """Add up what some clients upload, and forget the rest of it."""
    for result in results:
        reply.each |= reduction.add(result, cohort)
        reply.sent += result.count_bytes()
    results.clear()
