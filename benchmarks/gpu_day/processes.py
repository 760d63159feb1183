"""Plain processes that stand for actors: they train clients side by side, on one GPU, without Ray."""

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from torch import Tensor

from fedray.engine.disk import client_files
from fedray.engine.disk.client_files import Version, Written
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.evaluate import count_chunks, evaluate
from fedray.engine.process.personal import evaluate_personal
from fedray.engine.process.train import train
from fedray.engine.process.worker import Worker

CALLS: dict[str, Any] = {"train": train, "evaluate": evaluate, "evaluate_personal": evaluate_personal}


class Processes:
    """A backend of `count` processes with this process's environment and `env`, which serve problem after problem."""

    def __init__(self, count: int, env: Mapping[str, str] | None = None) -> None:
        self.processes = count
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._running = []
        with mock.patch.dict(os.environ, env or {}):
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._running.append(process)

    def open(self, problem: Problem) -> None:
        self._problem = problem
        self._ask("open", [(problem,)] * len(self._pipes))

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        count = len(self._pipes)
        return self._ask("train", [(broadcast, list(tasks)[k::count]) for k in range(count)])

    def evaluate(self, theta: Tensor, buffers: Tensor, split: str = "test", round: int = 0) -> list[dict[str, Tensor]]:
        chunks, count = range(count_chunks(len(self._problem.evaluated[split]))), len(self._pipes)
        return self._ask("evaluate", [(theta, buffers, chunks[k::count], split, round) for k in range(count)])

    def evaluate_personal(
        self, broadcast: Broadcast, tasks: Sequence[ClientTask], request: PersonalEval
    ) -> dict[int, dict[str, float]]:
        count = len(self._pipes)
        shares = self._ask("evaluate_personal", [(broadcast, list(tasks)[k::count], request) for k in range(count)])
        return {client: scores for share in shares for client, scores in share.items()}

    def write_states(self, directory: str, versions: Sequence[Version]) -> dict[int, Written]:
        return client_files.write_states(directory, versions)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._running:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    def _ask(self, what: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Let every process do something with its worker at the same time; raise what one of them raises."""
        for pipe, given in zip(self._pipes, arguments, strict=True):
            pipe.send((what, given))
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def _serve(pipe: Connection) -> None:
    """Answer calls until the pipe is closed."""
    worker: Any = None
    while True:
        try:
            what, given = pipe.recv()
        except EOFError:
            return
        try:
            if what == "open":
                worker, answer = Worker(*given), None
            else:
                answer = CALLS[what](worker, *given)
        except Exception as error:  # the other side raises it
            answer = error
        pipe.send(answer)
