"""Trains clients and tests models in one process; the backends differ only in their number of workers."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.client import CHUNK, LocalClient, Population
from fedray.common.errors import UserError, warn_once
from fedray.common.vectors import Vectors, upload
from fedray.datasets.dataset import Samples
from fedray.engine.exact_sum import BLOCK, NotSummable
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.process import device as devices
from fedray.engine.process.device import keep_memory
from fedray.engine.process.lanes import Lanes
from fedray.engine.process.reduction import ClientResult, Reduction
from fedray.engine.process.residence import DeviceState, Residence, Spill, limit_memory
from fedray.engine.state import load_state
from fedray.engine.training.batches import AHEAD, Drawn, draw_ahead
from fedray.engine.training.local_training import LocalTrainer, Watch
from fedray.engine.training.stack import Stacking, TrainedStack, agree, can_stack, choose_size, copy_rows, train_stack
from fedray.models.network import Network
from fedray.models.recorded import record_on_cuda
from fedray.models.stacked import Unstackable
from fedray.partitions.shards import Shards
from fedray.probes.probes import Steps, probe_client

MAX_TEST_LOSS = 1e5
SCORES = "scores of chunk "
"""Prefix of the sums that hold a chunk's probabilities, with `evaluation.auc`."""
MAX_CONFUSED = 200
"""The confusion matrix is computed for at most this many classes."""
LESS_MEMORY = "lower training.batch_size, or raise runtime.cpus_per_actor or gpus_per_actor: fewer actors on a node"


class Worker:
    """One process's part of a run: the model and the samples; it keeps nothing of a client between calls."""

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        torch.set_num_threads(config.runtime.threads)
        keep_memory()
        device = config.runtime.torch_device
        devices.refuse_missing(device)
        devices.warn_of_slow_precision(config.training.precision, device)
        if device == "cuda":
            devices.prepare(tf32=config.training.precision == "tf32", deterministic=config.runtime.deterministic)
            devices.limit_share(config.runtime.gpu_share)
        data = problem.data
        self.problem = problem
        self.probes = config.evaluation.probes
        self.device = device
        self.record = record_on_cuda if device == "cuda" else None
        self.network = self.build_network()
        if device == "cuda" and config.runtime.deterministic:
            devices.choose_workspace(self.network.module)
        self.residence: Residence | None = None
        self.keeps_states = False
        # The test set is on the device; of the training set only what `residence` keeps is.
        self.train_samples = Samples(data.x_train, data.y_train, data, device, held=None if data.is_merged else "cpu")
        self.test_samples = self.train_samples if data.is_merged else Samples(data.x_test, data.y_test, data, device)
        self.population = Population(
            samples=self.train_samples,
            classes=data.num_classes,
            seed=config.seed,
            clients=len(problem.shards),
            total_samples=int(problem.shards.sizes.sum()),
            counts=cache(lambda: problem.shards.count_labels(data.y_train, data.num_classes)),
            own_code=any(":" in component.name for component in config.components),
        )
        self.trainer = LocalTrainer(
            algorithm=config.algorithm,
            training=config.training,
            network=self.network,
            population=self.population,
            shards=problem.dealt,
            stepping=None if config.stepping is config.algorithm else config.stepping,
        )
        self.stacking = Stacking(self.network, choose_size(self.network, config.runtime.stack))
        self.lanes: Lanes | None = None
        wanted = None if config.runtime.lanes == "auto" else config.runtime.lanes
        if device != "cpu":
            self.reside(limit_memory(config.runtime.gpu_share))
            self.open_lanes(wanted, partial(devices.count_memory, config.runtime.gpu_share))
        elif wanted is not None and wanted > 1:
            warn_once(f"runtime.lanes: found {wanted}; lanes are for a GPU, and a CPU trains one client after another")

    def reside(self, limit: int) -> None:
        """Keep shards on the device from now on. limit: bytes to keep there."""
        self.residence = Residence(self.train_samples, limit)
        self.population = replace(self.population, take=self.residence.take)
        self.trainer = replace(self.trainer, population=self.population)

    def build_network(self) -> Network:
        """Return the model on the device, with recordings on a GPU."""
        network = self.problem.build_network(self.device)
        network.recorder = self.record and self.record(network)
        return network

    def open_lanes(self, wanted: int | None, count_memory: Callable[[], tuple[int, int]] | None = None) -> None:
        """Train clients in lanes from now on; the arguments are those of `Lanes`."""
        self.lanes = None if wanted == 1 else Lanes(self.network, self.build_network, wanted, count_memory)

    def keep_states(self, spill: Spill) -> None:
        """Keep new states on the device, too; for a run with one process. spill: stores a state that leaves it."""
        if self.residence is not None:
            self.residence.spill, self.keeps_states = spill, True

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Reply:
        """Train the clients of `tasks` and reduce their uploads."""
        trainer = self.trainer
        config, there = self.problem.config, self._to_device(broadcast)
        reduction, reply = Reduction(), Reply()
        states: dict[int, Vectors] = {}
        results: list[ClientResult] = []
        most = 1 if broadcast.measured else min(AHEAD, -(-BLOCK // len(there.theta)))
        lanes = None if broadcast.measured else self.lanes
        for result in self._train_in_lanes(lanes, there, tasks) if lanes is not None else ():
            results.append(result)
            states[result.tasks[0].client] = result.state
            if len(results) >= most:
                _reduce(results, reduction, broadcast.cohort, reply)
        for part in self._iter_parts(trainer, broadcast, tasks) if lanes is None else ():
            steps = Steps(self.probes, config.algorithm) if broadcast.measured else None
            for trained in self._train(trainer, there, part, steps if steps and steps.probes else None):
                c, own = trained.c, [task.client for task in trained.tasks]
                results.append(ClientResult(trained.tasks, c.loss, trained.steps, trained.uploads, c.state))
                states |= zip(own, copy_rows(c.state, len(own)), strict=True)
                if sum(len(result.tasks) for result in results) >= most:
                    _reduce(results, reduction, broadcast.cohort, reply)
                if steps:
                    reply.diverged |= reduction.settle()
                    if own[0] not in reply.diverged:
                        tested = self.problem.evaluated["test"]
                        with self._key_draws("probe", broadcast.round, own[0]):
                            reply.probes[own[0]] = probe_client(
                                self.probes, c, config.algorithm, self.test_samples, tested, steps
                            )
        _reduce(results, reduction, broadcast.cohort, reply)
        residence = self.residence if self.keeps_states else None
        groups = [reply.each] if residence else [reply.each, states]
        diverged, reply.sums, copies = reduction.finish(_list_tensors(groups))
        reply.diverged |= diverged
        reply.each, *kept = _replace_tensors(groups, copies)
        reply.states = {**kept[0]} if residence is None else residence.keep_all(states)
        self.network.name_changed()
        return reply

    def _train_in_lanes(self, lanes: Lanes, there: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[ClientResult]:
        """Yield trained clients, the longest first."""
        trainer, config, shards = self.trainer, self.problem.config, self.problem.shards
        ordered = sorted(tasks, key=lambda task: -trainer.count(len(shards[task.client])).steps)
        drawn_ahead = draw_ahead(config.training, trainer.shards, config.seed, there, ordered)

        def explain(error: Exception, task: ClientTask) -> None:
            _explain_error(error, f"client {task.client} ({len(shards[task.client])} samples)")

        given = ((self._task_to_device(task), drawn) for task, drawn in drawn_ahead)
        yield from lanes.train(trainer, there, given, explain)

    def _iter_parts(
        self, trainer: LocalTrainer, broadcast: Broadcast, tasks: Sequence[ClientTask]
    ) -> Iterator[list[tuple[ClientTask, Drawn | None]]]:
        """Yield the clients that train together, with their batches as they are drawn: stacks, or one client."""
        augmented, config = bool(self.train_samples.augment), self.problem.config
        stacked = self.stacking.size > 1 and not augmented and can_stack(trainer, broadcast)
        gathered = self.train_samples if self.residence is None and not augmented and not stacked else None
        if stacked:  # their order changes no sum
            apart = not self.stacking.mixes
            tasks = sorted(tasks, key=lambda task: (apart and bool(task.state), len(trainer.shards[task.client])))
        stacks = -(-len(tasks) // self.stacking.size)
        size = -(-len(tasks) // max(stacks, 1))  # about equal: 50 and 50, not 64 and 36
        part: list[tuple[ClientTask, Drawn | None]] = []
        for given, drawn in draw_ahead(config.training, trainer.shards, config.seed, broadcast, tasks, gathered):
            task = self._task_to_device(given)
            alone = not stacked or drawn is None or not drawn.order
            other = not self.stacking.mixes and bool(part) and bool(part[0][0].state) != bool(task.state)
            if part and (alone or other or len(part) >= size):
                yield part
                part = []
            part.append((task, drawn))
            if alone:
                yield part
                part = []
        if part:
            yield part

    def _train(
        self,
        trainer: LocalTrainer,
        there: Broadcast,
        part: Sequence[tuple[ClientTask, Drawn | None]],
        watch: Watch | None = None,
    ) -> list[TrainedStack]:
        """Train some clients, as a stack if there are several and nothing is against it."""
        name, size = trainer.algorithm.name, self.stacking.size
        stacked: list[TrainedStack] = []
        if 1 < size < len(part):
            return self._train(trainer, there, part[:size]) + self._train(trainer, there, part[size:])
        if len(part) > 1 and size > 1:
            try:
                stacked = train_stack(trainer, self.stacking, there, part)
            except Unstackable as reason:
                groups = [[one for one in part if bool(one[0].state) is kept] for kept in (False, True)]
                if all(groups):  # it needs to know who is new: from now on they have stacks of their own
                    self.stacking.mixes = False
                    return [trained for group in groups for trained in self._train(trainer, there, group)]
                self.stacking.stop(str(reason))
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    _explain_error(error, "a stack")
                    raise
                self.stacking.halve()
                return self._train(trainer, there, part)
            if stacked and name in self.stacking.compared:
                return stacked
        alone: list[TrainedStack] = []
        for task, drawn in part:
            with _explain(f"client {task.client} ({len(self.problem.shards[task.client])} samples)"):
                c, uploads = trainer.train(there, task, watch, drawn)
            alone.append(TrainedStack([task], c, [c.steps], uploads))
        if stacked:
            self.stacking.compared.add(name)
            if not agree(stacked, alone):
                self.stacking.stop(f"{name} has other bits in a stack")
        return alone

    def _key_draws(self, purpose: str, round: int, number: int = 0) -> contextlib.AbstractContextManager[None]:
        """Key the draws of the user's own code in a forward pass, such as dropout while testing."""
        if not self.population.own_code:
            return contextlib.nullcontext()
        return self.population.key_draws(purpose, round, number, self.network.theta.device)

    def evaluate(
        self, theta: Tensor, buffers: Tensor, chunks: Sequence[int], split: str = "test", round: int = 0
    ) -> dict[str, Tensor]:
        """Test a model on chunks of 500 consecutive samples of a set of `Problem.evaluated` (not augmented).

        Args:
            theta: float32 `(P,)`.
            buffers: float32 `(B,)`.
            chunks: numbers of the chunks, from 0.
            split: the set.
            round: rounds made so far, which key what the user's own code draws while testing.

        Returns:
            Exact sums over the whole set: `loss` (its mean), `correct` per class, and `unbounded`, the number of chunks
            whose mean loss is not finite or above 1e5 (such chunks are left out of `loss`). For the test set also
            `answers` per output, `confusion`, samples by class and answer `(C, outputs)` for up to 200 outputs, each
            chunk's probabilities (`evaluation.auc`), and, under each probe's name, its sums (`Probe.test_sums`) divided
            by 500. For samples held out by clients also `correct_of_clients`, the correct answers of each client that
            holds samples out.
        """
        theta, buffers = theta.to(self.device), buffers.to(self.device)
        self.network.train(False)
        sums = Reduction()
        samples = self.test_samples if split == "test" else self.train_samples
        positions = self.problem.evaluated[split]
        owners = number_holders(self.problem.own_validation) if split == "validation" else None
        classes, n = self.problem.data.num_classes, len(positions)
        terms = count_chunks(n)
        probes = [probe for probe in self.probes if split == "test" and "global" in probe.tested_models]
        for chunk in chunks:
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            x, y = samples.make_batch(positions[part])
            self.network.reset(buffers)
            with torch.no_grad(), self._key_draws(f"test {split}", round, chunk):
                output = self.network.predict(theta, x)
                logits = self.problem.config.algorithm.logits(output)
            loss = cross_entropy(logits, y, reduction="sum")
            bounded = loss <= MAX_TEST_LOSS * len(y)  # false for NaN; an unbounded loss cannot be summed
            sums.add_vector("unbounded", (~bounded).float(), 1.0, terms, wide=True)
            sums.add_vector("loss", torch.where(bounded, loss, 0.0), 1 / n, terms)
            answers, outputs = logits.argmax(1), logits.shape[1]
            is_right = (answers == y).float()
            ones = torch.ones_like(is_right)
            if split == "test" and outputs <= MAX_CONFUSED:
                counted = _count(y * outputs + answers, ones, classes * outputs).view(classes, outputs)
                sums.add_vector("confusion", counted, 1.0, terms, wide=True)
            if split == "test":
                sums.add_vector("answers", _count(answers, ones, outputs), 1.0, terms, wide=True)
            if split == "test" and self.problem.config.evaluation.auc:
                sums.add_vector(f"{SCORES}{chunk}", logits.softmax(1).nan_to_num(), 1.0, 1)
            sums.add_vector("correct", _count(y, is_right, classes), 1.0, terms, wide=True)
            if owners is not None:
                theirs = torch.from_numpy(owners[part]).to(self.device)
                counted = _count(theirs, is_right, int(owners[-1]) + 1)
                sums.add_vector("correct_of_clients", counted, 1.0, terms, wide=True)
            for probe in probes:
                if (found := probe.test_sums(output, y, classes)) is not None:
                    sums.add_vector(probe.name, found, 1 / CHUNK, terms)
        refused, fetched, _ = sums.finish()
        if refused:
            raise NotSummable(*refused.values())
        return fetched

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        """Test the personal models of some clients.

        Args:
            broadcast: the global model and the server.
            tasks: the clients.
            request: which tests they take.

        Returns:
            client -> test -> value. `own_E` after E epochs: accuracy on the client's own test samples, percent.
            `everyone`, `everyone_loss`: accuracy and mean loss on the whole test set. If samples are held out, also
            `validation_E` on the client's own (if it has any), `everyone_validation` and `everyone_validation_loss`.
            `train_E`: accuracy on the client's own training samples. A score is NaN if the model's outputs are NaN.
            For newcomers: `received`, before any training, and `own_E`, both on the client's own test samples.
        """
        there, tests = self._to_device(broadcast), self.problem.tests
        held, evaluated = self.problem.own_validation, self.problem.evaluated
        result: dict[int, dict[str, float]] = {}
        for task in map(self._task_to_device, tasks):
            if request.newcomers:
                result[task.client] = self._test_newcomer(there, task, request.epochs)
                continue
            scores = result[task.client] = {}
            for epochs in request.epochs:
                indices = self.problem.shards[task.client]
                with _explain(f"the personal model of client {task.client} ({len(indices)} samples)"):
                    c = self.trainer.personalise(there, task, epochs)
                if request.own and tests is not None:
                    scores[f"own_{epochs}"], _ = self._score(c, "test", tests[task.client])
                if request.own and held is not None and len(held[task.client]):
                    scores[f"validation_{epochs}"], _ = self._score(c, "validation", held[task.client])
            if request.everyone:
                for split in ("test", "validation"):
                    if split in evaluated:
                        name = "everyone" if split == "test" else f"everyone_{split}"
                        scores[name], scores[f"{name}_loss"] = self._score(c, split, evaluated[split])
            if request.train:
                scores[f"train_{epochs}"], _ = self._score(c, "train", indices)
        return result

    def _test_newcomer(self, there: Broadcast, task: ClientTask, epochs: Sequence[int]) -> dict[str, float]:
        """Return a newcomer's accuracies on its own test samples, in percent, as `evaluate_personal`."""
        unseen, client = self.problem.unseen, task.client
        assert unseen is not None  # noqa: S101 (`Problem.list_newcomers` names only clients with both)
        assert unseen.test is not None  # noqa: S101
        tests, scores = unseen.test[client - len(self.problem.shards)], dict[str, float]()
        with _explain(f"the newcomer {client} ({len(self.problem.dealt[client])} samples)"):
            c = self.trainer.start(there, task)
            scores["received"], _ = self._score(c, "test", tests, received=True)
            for e in epochs:
                c = self.trainer.introduce(there, task, e)
                scores[f"own_{e}"], _ = self._score(c, "test", tests)
        return scores

    def build_personal(self, broadcast: Broadcast, task: ClientTask, epochs: int) -> tuple[Tensor, Tensor]:
        """Return parameters `(P,)` and buffers `(B,)` of a client's personal model, float32 on the CPU."""
        c = self.trainer.personalise(self._to_device(broadcast), self._task_to_device(task), epochs)
        return c.theta.detach().cpu().clone(), c.network.buffers.detach().cpu().clone()

    def _score(self, c: LocalClient, split: str, indices: np.ndarray, received: bool = False) -> tuple[float, float]:
        """Return accuracy in percent and mean loss of a client's answers to some samples of a set.

        With `received` the model alone gives the answers, without what the method computes from own samples.
        """
        algorithm = self.problem.config.algorithm
        samples = self.test_samples if split == "test" else self.train_samples
        correct, loss = 0, 0.0
        for start in range(0, len(indices), CHUNK):
            c.start_step(0, *samples.make_batch(indices[start : start + CHUNK]))
            with torch.no_grad(), self._key_draws(f"score {split} {start}", c.round, c.id):
                logits = algorithm.logits(c.predict(c.theta)) if received else algorithm.personal_logits(c)
            if torch.isnan(logits).any():
                return float("nan"), float("nan")
            correct += int((logits.argmax(1) == c.y).sum())
            loss += float(cross_entropy(logits, c.y, reduction="sum"))
        return 100 * correct / len(indices), loss / len(indices)

    def _to_device(self, broadcast: Broadcast) -> Broadcast:
        names = list(broadcast.message)
        theta, buffers, *message = self._move([broadcast.theta, broadcast.buffers, *broadcast.message.values()])
        return replace(broadcast, theta=theta, buffers=buffers, message=Vectors(zip(names, message, strict=True)))

    def _task_to_device(self, task: ClientTask) -> ClientTask:
        if self.residence is None:
            return task
        there = task.state.get_on_device() if isinstance(task.state, DeviceState) else None
        if there is None:
            state = load_state(task.state)
            there = Vectors(zip(state, self._move(list(state.values())), strict=True))
        return ClientTask(task.client, task.weight, Vectors(there))

    def _move(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return CPU tensors on the device, moved in one copy."""
        if self.residence is None or not tensors:
            return tensors
        return upload([tensor.detach().numpy() for tensor in tensors], self.device)


def _reduce(results: list[ClientResult], reduction: Reduction, cohort: int, reply: Reply) -> None:
    """Add up what some clients upload, and forget the rest of it."""
    for result in results:
        reply.each |= reduction.add(result, cohort)
        reply.sent += result.count_bytes()
    results.clear()


@contextlib.contextmanager
def _explain(what: str) -> Iterator[None]:
    """Turn errors that a user can fix into UserErrors, as `_explain_error`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        _explain_error(error, what)
        raise


def _explain_error(error: Exception, what: str) -> None:
    """Raise a UserError for an error that a user can fix: out of memory (CPU or GPU), or no deterministic kernel."""
    if "does not have a deterministic implementation" in str(error):
        raise UserError(
            f"runtime.deterministic: {str(error).split()[0]} has no deterministic kernel; set it to "
            "false, and runs differ in their last bits"
        ) from None
    if not _is_out_of_memory(error):
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise UserError(f"{what}: out of memory: {str(error).splitlines()[0]}; {LESS_MEMORY}") from None


def _count(places: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Return the sum of the amounts at each place, float32 `(size,)`: torch.bincount would wait for the device."""
    return amounts.new_zeros(size).scatter_add_(0, places, amounts)


def _is_out_of_memory(error: Exception) -> bool:
    # torch has an error class only for CUDA's memory.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def _list_tensors(groups: Sequence[Mapping[int, Vectors]]) -> list[Tensor]:
    return [tensor for group in groups for vectors in group.values() for tensor in vectors.values()]


def _replace_tensors(groups: Sequence[Mapping[int, Vectors]], tensors: Iterable[Tensor]) -> list[dict[int, Vectors]]:
    """Return the clients' vectors with other tensors, given in the order of `_list_tensors`."""
    left = iter(tensors)
    return [{i: Vectors({name: next(left) for name in vectors}) for i, vectors in group.items()} for group in groups]


def count_chunks(samples: int) -> int:
    """Return the number of chunks of a set."""
    return -(-samples // CHUNK)


def number_holders(held: Shards | None) -> np.ndarray | None:
    """Return each held-out sample's owner, int64 `(n,)`, numbered 0, 1, ... over the clients that hold any out."""
    return None if held is None else np.repeat(np.cumsum(held.sizes > 0) - 1, held.sizes)
