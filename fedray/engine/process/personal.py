"""Tests of personal models, in one process."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.client import CHUNK, LocalClient
from fedray.common.explain import explain
from fedray.engine.guard import ask, refuse_other_logits
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval
from fedray.engine.process.worker import Worker


@explain("the test of personal models")
def evaluate_personal(
    worker: Worker, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
) -> dict[int, dict[str, float]]:
    """Test the personal models of some clients: returns client -> test -> value.

    `own_E` after E epochs: accuracy on the client's own test samples, percent. `everyone`, `everyone_loss`: accuracy
    and mean loss on the whole test set. If samples are held out, also `validation_E` on the client's own (if it has
    any), `everyone_validation` and `everyone_validation_loss`. `train_E`: accuracy on the client's own training
    samples. A score is NaN if the model's outputs are NaN. For newcomers: `received`, before any training, and `own_E`,
    both on the client's own test samples.
    """
    there, tests = worker.to_device(broadcast), worker.problem.split.test
    held, evaluated = worker.problem.own_validation, worker.problem.evaluated
    result: dict[int, dict[str, float]] = {}
    for task in map(worker.task_to_device, tasks):
        if request.newcomers:
            result[task.client] = _test_newcomer(worker, there, task, request.epochs)
            continue
        scores, indices = result.setdefault(task.client, {}), worker.problem.split.train[task.client]
        for epochs in request.epochs:
            with explain(f"the personal model of client {task.client} ({len(indices)} samples)"):
                c = worker.trainer.personalise(there, task, epochs)
            if request.own and tests is not None:
                scores[f"own_{epochs}"], _ = _score(worker, c, "test", tests[task.client])
            if request.own and held is not None and len(held[task.client]):
                scores[f"validation_{epochs}"], _ = _score(worker, c, "validation", held[task.client])
        if request.everyone:
            for split in ("test", "validation"):
                if split in evaluated:
                    name = "everyone" if split == "test" else f"everyone_{split}"
                    scores[name], scores[f"{name}_loss"] = _score(worker, c, split, evaluated[split])
        if request.train:
            scores[f"train_{request.epochs[-1]}"], _ = _score(worker, c, "train", indices)
    return result


def _test_newcomer(worker: Worker, there: Broadcast, task: ClientTask, epochs: Sequence[int]) -> dict[str, float]:
    """Return a newcomer's accuracies on its own test samples, in percent, as `evaluate_personal`."""
    unseen, client = worker.problem.split.unseen, task.client
    assert unseen is not None  # noqa: S101 (`Split.newcomers` are only clients with both)
    assert unseen.test is not None  # noqa: S101
    tests, scores = unseen.test[client - len(worker.problem.split.train)], dict[str, float]()
    with explain(f"the newcomer {client} ({len(worker.problem.split.dealt[client])} samples)"):
        c = worker.trainer.start(there, task)
        scores["received"], _ = _score(worker, c, "test", tests, received=True)
        for e in epochs:
            c = worker.trainer.personalise(there, task, e, newcomer=True)
            scores[f"own_{e}"], _ = _score(worker, c, "test", tests)
    return scores


@explain("a personal model")
def build_personal(worker: Worker, broadcast: Broadcast, task: ClientTask, epochs: int) -> tuple[Tensor, Tensor]:
    """Return parameters `(P,)` and buffers `(B,)` of a client's personal model, float32 on the CPU."""
    c = worker.trainer.personalise(worker.to_device(broadcast), worker.task_to_device(task), epochs)
    return c.theta.detach().cpu().clone(), c.network.buffers.detach().cpu().clone()


def _score(
    worker: Worker, c: LocalClient, split: str, indices: np.ndarray, received: bool = False
) -> tuple[float, float]:
    """Return accuracy in percent and mean loss of a client's answers to some samples of a set.

    With `received` the model alone gives the answers, without what the method computes from own samples.
    """
    algorithm = worker.problem.config.algorithm
    samples = worker.test_samples if split == "test" else worker.train_samples
    correct, loss = 0, 0.0
    for start in range(0, len(indices), CHUNK):
        c.start_step(0, *samples.make_batch(indices[start : start + CHUNK]))
        with torch.no_grad(), worker.key_draws(f"score {split} {start}", c._round, c.id):
            if received:
                logits = algorithm.logits(c.predict(c.theta))
            else:
                logits = ask(algorithm, "personal_logits", algorithm.personal_logits, c)
        hook = "logits" if received else "personal_logits"
        refuse_other_logits(algorithm, hook, logits, c.y, c.population.classes)
        if torch.isnan(logits).any():
            return float("nan"), float("nan")
        correct += int((logits.argmax(1) == c.y).sum())
        loss += float(cross_entropy(logits, c.y, reduction="sum"))
    return 100 * correct / len(indices), loss / len(indices)
