"""Result of a run: its history, its trained model, and how to save the model."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedray.algorithms.base import Algorithm
from fedray.cells.metric import LAST, OF_CLASSES, describe_accuracy, find_last_values, mean
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.common.calls import check_arguments
from fedray.common.errors import UserError, truncate_repr, unknown, warn_once
from fedray.common.output import OutputFile
from fedray.common.vectors import Vectors
from fedray.common.yaml_files import locate_folder
from fedray.components.identity import list_paths
from fedray.config import Personal, Runtime
from fedray.engine.messages import ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import isolate_run
from fedray.engine.process.personal import build_personal
from fedray.engine.process.worker import Worker
from fedray.engine.server.evaluate import get_tested_theta
from fedray.engine.server.profile import Profile
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State, StateDamaged, StateRef, digest_state, digest_theta
from fedray.models.network import Layout, Output
from fedray.models.parts import iter_statistics
from fedray.models.preprocess import Preprocess

if TYPE_CHECKING:
    from pandas import DataFrame

SOMETIMES = (
    *(f"test_{measure}" for measure in OF_CLASSES),
    "validation_accuracy",
    "personal_accuracy",
    "personal_std",
    "personal_worst10",
    "generic_accuracy",
    "unseen_accuracy",
    "unseen_std",
    "unseen_worst10",
    "unseen_finetuned_accuracy",
)
"""Metrics besides accuracy and losses that a run has if its configuration asks for them."""


def make_result(simulation: Simulation) -> "Result":
    """Return the result of a simulation so far."""
    state = simulation.state
    for ref in state.clients.values():
        if isinstance(ref, StateRef) and ref.sha256 is None:
            ref.sha256 = digest_state(ref)  # now: a backend that closes takes its states along
    return Result(state.history, simulation.layout, state, simulation.problem)


def refuse_without_personal(algorithm: Algorithm) -> None:
    """Raise UserError if a client answers with more than one model, or with scores that are no model's."""
    if not algorithm.answers_alone:
        raise UserError(f"personal_model: {algorithm.name} answers with more than the model of a client")


def refuse_without_model(algorithm: Algorithm) -> None:
    """Raise UserError if a method has no global model, because each client keeps its own parameters."""
    if algorithm.keeps != "none":
        raise UserError(f"model: {algorithm.name} has no global model; each client keeps parameters of its own")


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """Result of a run. Two results are equal only if they are one object; compare their hashes (`summary`).

    Attributes:
        history: a row per evaluated round: `round`, `test_accuracy` in percent, `test_loss`, `train_loss`, `lr`, and
            the metrics that `evaluation` adds. `megabytes_sent`: 10^6 bytes to and from clients in all rounds so far.
        layout: the slices of theta.
        state: everything needed to continue the run.
        problem: the configuration with its data split among clients.
        run_id: the run's id in MLflow; empty if it was not logged.

    Examples:
        >>> result = fedray.simulate(config)
        >>> [row["round"] for row in result.history], result.theta.shape
        ([1, 2], torch.Size([4810]))
        >>> model = result.model()
        >>> result.save("model.safetensors")
        PosixPath('model.safetensors')
    """

    history: list[dict[str, float]]
    layout: Layout
    state: State
    problem: Problem
    run_id: str = ""

    def __repr__(self) -> str:
        config = self.problem.config
        tested = f"test accuracy {describe_accuracy(self.history)}" if self.history else "not evaluated"
        early = "stopped after " * (self.status is Status.STOPPED)
        of = f"{early}{self.state.round} of {config.training.rounds} rounds"
        return f"<Result of {config.algorithm.name} on {config.data.name}: {of}, {tested}>"

    @property
    def status(self) -> Status:
        """`finished`, or `stopped` if the run ended before its last round; both equal these texts."""
        return Status.FINISHED if self.state.round >= self.problem.config.training.rounds else Status.STOPPED

    @property
    def theta(self) -> Tensor:
        """float32 `(P,)`: trained parameters of the global model as it was tested, in `model.parameters()` order."""
        return get_tested_theta(self.state)

    def summary(self) -> dict[str, Any]:
        """Return the accuracy shown in tables, the last round's metrics, hashes, bytes sent, and mean seconds per
        round.

        `last10_test_accuracy` is the mean over the rounds that `list_last_rounds` counts; seconds exclude evaluation.
        `theta_sha256` is the hash of the x from which training continues; FedExP tests the mean of the last two (D-82).
        """
        last, record = self.history[-1], self.record()
        return {
            f"{LAST}test_accuracy": mean(find_last_values(self.history, "test_accuracy").values()),
            "test_accuracy": last["test_accuracy"],
            "test_loss": last["test_loss"],
            "train_loss": last["train_loss"],
            **{name: last[name] for name in SOMETIMES if name in last},
            "rounds": self.state.round,
            **record.hashes,
            **record.totals,
        }

    def record(self, profile: Profile | None = None) -> Record:
        """Return the record of a run that ended as intended; `profile` holds the seconds of each part if measured."""
        state = self.state
        totals = {
            "seconds_per_round": state.seconds / state.round,
            "seconds_per_round_with_evaluation": (state.seconds + state.evaluation_seconds) / state.round,
            "megabytes_down": state.sent[0] / 1e6,
            "megabytes_up": state.sent[1] / 1e6,
        }
        hashes = {"theta_sha256": digest_theta(state.theta), "state_sha256": state.digest()}
        hashes |= {"frozen_sha256": state.frozen} if state.frozen else {}
        finished, parts = Ending(Status.FINISHED), () if profile is None else profile.rounds
        totals |= {} if profile is None else profile.average_seconds()
        return Record(finished, self.history, totals, hashes, state.tables, parts)

    def to_frame(self) -> "DataFrame":
        """Return the history as a pandas DataFrame: a row per evaluated round, with `round` as its index."""
        from pandas import DataFrame  # here: it takes a second to import, and a run does not need it

        return DataFrame(self.history).set_index("round")

    @check_arguments
    def table(self, name: str) -> "DataFrame":
        """Return a table of the latest evaluation as a pandas DataFrame.

        Args:
            name: `clients`, a row per client with its accuracies (with `evaluation.personal`); `confusion`, a row per
                class, with its number of samples per class that the global model predicts. Clients, classes and samples
                are integers.

        Raises:
            UserError: the run has no such table.
        """
        from pandas import DataFrame

        if name not in self.state.tables:
            raise unknown("table", name, self.state.tables)
        frame = DataFrame(self.state.tables[name])
        return frame.astype({column: int for column in frame if not str(column).endswith("accuracy")})

    @isolate_run()
    def model(self) -> nn.Module:
        """Return the trained global model, as it was tested: a new module on the CPU, in evaluation mode.

        If the data are pictures, its inputs are uint8 or float32 `(n, c, h, w)` with values from 0 to 255: its first
        layer (`fedray.models.preprocess.Preprocess`) scales, normalises and resizes them as the run did. Without
        pictures its inputs are the run's. A line tells of a method that tests other logits than the model's own.

        Raises:
            UserError: the method has no global model, because each client keeps its own parameters.
        """
        method, ones = self.problem.config.algorithm, torch.ones(1, 2)
        refuse_without_model(method)
        if method.overrides("logits") and (":" in method.name or method.logits(Output(ones, ones)) is not ones):
            warn_once(
                f"model: {method.name} tests logits of its own, made of the model's features: the module answers with "
                "those of its head, whose losses and probabilities are others (fedge's and fedgela's classes are not)"
            )
        return self._with_preprocessing(self._fill_module(self.theta, self.state.buffers))

    @check_arguments
    @isolate_run()
    def personal_model(self, client: int) -> nn.Module:
        """Return the personal model of a client, as it is tested: like `model`, a new module on the CPU.

        A method that fine-tunes does so for the largest number of epochs of `evaluation.personal`, by default 10.

        Args:
            client: id of a client that trains and has samples.

        Raises:
            UserError: there is no such client, or the method's clients answer with more than one model (kNN-Per).
        """
        return self._with_preprocessing(next(self._build_personal([client]))[1])

    @check_arguments
    @isolate_run()
    def save_personal(self, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write the personal model of each client as `client-ID.safetensors`, as `save` writes the global one.

        Raises:
            UserError: as `personal_model`, or a file cannot be written or must not be replaced.
        """
        target = locate_folder("save_personal", str(folder))
        owners = self._list_owners()
        files = [self._open("save_personal", target / f"client-{one}.safetensors", overwrite) for one in owners]
        for file, (client, module) in zip(files, self._build_personal(owners), strict=True):
            self._write(module, file, client=str(client))
        return [file.path for file in files]

    def _open(self, name: str, path: Path, overwrite: bool) -> OutputFile:
        """Return a file to write, which the run must not have read. Raises UserError."""
        return OutputFile(name, path, (".safetensors",), overwrite, list_paths(self.problem.config))

    def _list_owners(self) -> list[int]:
        return [int(i) for i in np.flatnonzero(self.problem.split.train.sizes > 0)]

    def _build_personal(self, clients: Sequence[int]) -> Iterator[tuple[int, nn.Module]]:
        config = self.problem.config
        refuse_without_personal(config.algorithm)
        for client in clients:
            if client not in (owners := self._list_owners()):
                mistake = f"personal_model: client: found {truncate_repr(client)}"
                raise UserError(f"{mistake}; one of the {len(owners)} clients that train is required")
        here = config.model_copy(update={"runtime": Runtime(backend="inline")})
        problem, backend = replace(self.problem, config=here), InlineBackend()
        simulation = Simulation(problem, backend)
        simulation.restore(self.state)
        tester = simulation.tester
        tested = len(tester.list_tested(own=True))
        broadcast = tester.broadcast(tested)
        epochs = (config.evaluation.personal or Personal()).tuned[-1] if config.algorithm.personal == "tuned" else 0
        worker = Worker(problem)
        for client in clients:
            task = ClientTask(client, 1 / tested, self.state.clients.get(client, Vectors()))
            try:
                built = build_personal(worker, broadcast, task, epochs)
            except StateDamaged as damaged:
                raise UserError(
                    f"personal_model: the state of client {client} cannot be read: {damaged.args[-1]}; a finished run "
                    "has the states that its personal models need, or all with runtime.keep_states"
                ) from None
            yield client, self._fill_module(*built)

    def _fill_module(self, theta: Tensor, buffers: Tensor) -> nn.Module:
        """Return the model with these parameters and running statistics, without preprocessing."""
        module = self.problem.build_module()
        parts = self.layout.views(theta)
        floats = [buffer for _, _, buffer in iter_statistics(module)]
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    parameter.data = parts[name].clone()  # float32, as trained
            for buffer, part in zip(floats, buffers.split([b.numel() for b in floats]), strict=True):
                buffer.data = part.view_as(buffer).clone()
        return module.eval()

    def _with_preprocessing(self, module: nn.Module) -> nn.Module:
        data = self.problem.data
        if data.x_train.dtype != np.uint8 or data.x_train.ndim != 4:
            return module
        layers = {"preprocess": Preprocess(data.mean, data.std, data.input_shape[1:]), "model": module}
        return nn.Sequential(OrderedDict(layers)).eval()

    @check_arguments
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the trained model's state_dict as a safetensors file; `safetensors.torch.load_file` reads it.

        The tensors have the names of the model itself. The file's metadata hold the configuration, the `theta_sha256`
        of the summary and, for pictures, `preprocessing`: mean, std and size, as JSON.

        Args:
            path: the file, which is written whole or not at all, with the folders that it needs.
            overwrite: also replace a file whose name does not end in `.safetensors`.

        Raises:
            UserError: the file cannot be written, or must not be replaced (MLflow's store, the storage, a file that the
                run read), or the method has no global model.
        """
        refuse_without_model(self.problem.config.algorithm)
        file = self._open("save", Path(path), overwrite)
        with isolate_run():
            self._write(self._fill_module(self.theta, self.state.buffers), file)
        return Path(path)

    def _write(self, module: nn.Module, file: OutputFile, **more: str) -> None:
        tensors = {name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}
        data = self.problem.data
        metadata = more | {
            "theta_sha256": digest_theta(self.state.theta),
            **({"frozen_sha256": self.state.frozen} if self.state.frozen else {}),
            "config": self.problem.config.model_dump_json(),
            "preprocessing": json.dumps({"mean": data.mean, "std": data.std, "shape": data.input_shape}),
        }
        file.write(save(tensors, metadata))
