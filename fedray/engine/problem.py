"""A configuration's data, shards and model, built. Each process builds the same from the same inputs."""

import io
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedray.common.errors import UserError, join_lines, warn_once
from fedray.common.rng import key_draws
from fedray.components.plugins import blame
from fedray.config import RunConfig
from fedray.datasets.augment import Crop
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Dataset, Samples
from fedray.engine.guard import refuse_other
from fedray.engine.sampling import refuse_without_batches
from fedray.models.base import build
from fedray.models.frozen_weights import share_frozen
from fedray.models.network import Network
from fedray.models.trial import try_out
from fedray.partitions.held_out import Split, split_samples
from fedray.partitions.shards import Shards

log = logging.getLogger("fedray")


def resolve_with(config: RunConfig, data: Dataset) -> dict[str, Any]:
    """Return the resolved configuration with the mean and std in use, also if they come from a preset."""
    settings = config.resolve()
    if "mean" in settings["data"]:
        settings["data"] |= {"mean": list(data.mean), "std": list(data.std)}
    return settings


@dataclass(frozen=True)
class Problem:
    """A configuration with its data split among clients."""

    config: RunConfig
    data: Dataset
    split: Split
    model_sha256: str = ""
    """`Network.sha256` of the model that the run begins with; empty before it has one."""

    @classmethod
    def build(cls, config: RunConfig, data: Dataset | None = None) -> "Problem":
        """Load the data (or take those given), fit them to the model and split them.

        Raises UserError for a mistake that only shows once the data are loaded.
        """
        with blame(*config.components):
            return cls._build(config, data)

    @classmethod
    def _build(cls, config: RunConfig, data: Dataset | None) -> "Problem":
        data = prepare_data(data or load_data(config.data), config)
        if not len(data.y_test):
            raise UserError(f"data {data.name}: the test set is empty; data.test: {{from: clients}} makes one")
        clients = config.clients
        split = split_samples(config.data, config.partition, data, clients.total, config.seed, clients.unseen)
        if split.train.sizes.max() == 0:
            raise UserError("partition: every client is empty")
        if config.training.nominal_steps == "client0" and not split.train.sizes[0]:
            raise UserError("training.nominal_steps: found client0, and client 0 has no samples")
        for t, ids in enumerate(clients.cohorts or ()):
            if not split.train.sizes[list(ids)].any():
                raise UserError(f"clients.cohorts: every client of round {t} is empty")
        refuse_without_batches(config, split.train.sizes)
        personal = config.evaluation.personal
        if personal is not None and split.test is None:
            with key_draws(True, config.seed, "test split"):  # of code of the user's own
                dealt = config.partition.split_test(data, split.dealt, config.seed, personal.split)
            dealt = config.partition.check_dealt("split_test", dealt, clients.dealt, len(data.y_test))
            unseen = split.unseen and replace(split.unseen, test=dealt.take(clients.total, clients.dealt))
            split = replace(split, test=dealt.take(0, clients.total), unseen=unseen)
        tests = split.test
        if personal is not None and tests is not None and not ((split.train.sizes > 0) & (tests.sizes > 0)).any():
            raise UserError("evaluation.personal: no client has test samples of its own")
        problem = cls(config, data, split)
        if split.unseen is not None and not len(split.newcomers):
            raise UserError(
                f"clients.unseen: found {clients.unseen}; none of them has both training and test samples of its own"
            )
        if config.evaluation.auc and len(np.unique(data.y_test[problem.evaluated["test"]])) < 2:
            warn_once("evaluation.auc: all test samples are of one class, so test_auc is undefined and left out")
        if config.algorithm.keeps == "norm":
            network, names = problem.build_network("cpu"), (config.algorithm.name, config.model.name)
            if not network.layout.norms and not network.find_buffers("norm").numel():
                log.warning("%s: %s has no normalisation layers, so the global model is FedAvg's", *names)
        return problem

    @cached_property
    def evaluated(self) -> dict[str, np.ndarray]:
        """Samples of each evaluated set: split -> int64 `(n,)`, positions in the test set or in the training set.

        `test` lists the clients' test samples client by client with `data.test`. `train` lists the samples that clients
        train on, each once; `validation`, present if any are held out, lists them client by client.
        """
        split = self.split
        own = split.test if self.config.data.test is not None else None
        sets = {"test": np.arange(len(self.data.y_test)) if own is None else own.indices}
        if split.validation is not None:
            sets["validation"] = split.validation.indices
        return sets | {"train": np.unique(split.train.indices)}

    @property
    def own_validation(self) -> Shards | None:
        """Each client's own held-out samples; None if none are held out, or not from clients."""
        asked, held = self.config.data.validation, self.split.validation
        if held is None or (asked is not None and asked.source == "pool"):
            return None
        return held if len(held) == len(self.split.train) else None  # else a partition's own pool

    def draw_picture(self) -> bytes:
        """Return the client x class heatmap as PNG; takes a quarter of a second."""
        from matplotlib import rc_context  # here: matplotlib takes half a second to import

        from fedray.partitions.heterogeneity import draw_heatmap

        counts = self.split.dealt.count_labels(self.data.y_train, self.data.num_classes)
        file, title = io.BytesIO(), f"{self.data.name}, {self.config.partition.make_label()}"
        with rc_context({"text.usetex": False}):  # a user's matplotlibrc may ask for a LaTeX that this machine lacks
            draw_heatmap(counts, title=title, unseen=self.config.clients.unseen).savefig(file, format="png")
        return file.getvalue()

    def pack_split(self) -> bytes:
        """Return the samples of each client as an npz file that needs no pickle.

        Returns:
            `train_indices`, `train_offsets`: client i holds the training samples `train_indices[train_offsets[i]:
            train_offsets[i + 1]]` (int64). Likewise `test_*`, if clients have test samples of their own, and
            `validation_*`, if samples are held out. With `data.test` all indices count training, then test samples.
            Unseen clients come last. `samples`: numbers of training and test samples, or of both together. `digest`:
            SHA-256 of the labels (`Dataset.labels_digest`), uint8 `(32,)`. `partition: file` reads it.
        """
        file = io.BytesIO()
        split = self.split
        parts = {"train": split.train, "test": split.test, "validation": split.validation}
        packed = {name: shards for name, shards in parts.items() if shards is not None}
        if split.unseen is not None:
            none = Shards.from_lists([np.zeros(0, dtype=np.int64)] * len(split.unseen.train))
            others = {"train": split.unseen.train, "test": split.unseen.test}
            if self.own_validation is not None:
                others["validation"] = none
            packed |= {name: packed[name].join(more) for name, more in others.items() if more is not None}
        arrays = {f"{name}_{what}": getattr(packed[name], what) for name in packed for what in ("indices", "offsets")}
        train, test = len(self.data.y_train), len(self.data.y_test)
        samples = np.array([train] if self.data.is_merged else [train, test])
        digest = np.frombuffer(bytes.fromhex(self.data.labels_digest), dtype=np.uint8)
        np.savez_compressed(file, samples=samples, digest=digest, **arrays)
        return file.getvalue()

    def make_artefacts(self) -> dict[str, bytes]:
        """Return the files about the split that a run's record holds: file name -> content."""
        return {"partition.png": self.draw_picture(), "partition.npz": self.pack_split()}

    def build_module(self) -> nn.Module:
        """Return the freshly initialised model of this seed, with what is frozen marked as such."""
        with key_draws(True, self.config.seed, "init"):
            module = build(self.config.model, self.data.input_shape, self.data.num_classes)
        with key_draws(True, self.config.seed, "adapters"):
            self.config.model.adapt(module)
        self.config.model.load_init(module)
        return module

    def build_network(self, device: torch.device | str) -> Network:
        """Return the model on `device`, laid out flat, checked against one sample and two, at the algorithm's x⁰.

        On the CPU all processes of the node share its frozen weights. Raises UserError if the model does not accept the
        input shape, or has fewer outputs than the data have classes.
        """
        algorithm, model = self.config.algorithm, self.config.model
        training = self.config.training
        network = Network(
            self.build_module(),
            device,
            model.taps if algorithm.reads_taps else (),
            bf16=training.precision == "bf16",
            channels_last=self.config.channels_last,
        )
        if network.theta.device.type == "cpu":
            share_frozen(network.frozen, network.frozen_sha256)
        algorithm.check_built(network.layout, tokens=self.data.tokens)
        for probe in self.config.evaluation.probes:
            probe.check_built(network.layout, self.data.num_classes)
        self._check_tokens()
        self._check_mirrors()
        self._try_out(network)
        network.train(True)
        with key_draws(True, self.config.seed, "initial"):
            initial = algorithm.initial(network.initial.cpu(), network.layout)
        refuse_other(algorithm, "gives an initial model", initial, network.initial)
        network.start_at(initial)
        return network

    def _try_out(self, network: Network) -> None:
        """Refuse a model that `fedray.models.trial` refuses. Raises UserError."""
        name, bf16 = self.config.model.name, self.config.training.precision == "bf16"
        how = " with training.precision bf16 on this device" if bf16 else ""
        sample = Samples(self.data.x_train[:2], self.data.y_train[:2], self.data, network.theta.device)
        batches = [sample.make_batch(np.arange(n) % len(sample))[0] for n in (1, 2)]
        with key_draws(True, self.config.seed, "check", device=network.theta.device):
            try_out(network, batches, self.data.num_classes, f"model.name: {name}", how)

    def refuse_other_model(self, sha256: str) -> None:
        """Refuse a model that a process has built otherwise than the run. Raises UserError."""
        if self.model_sha256 not in ("", sha256):
            raise UserError(
                f"model.name: {self.config.model.name} begins with other weights in each process; draw them by torch, "
                "numpy.random or random, whose global generators the run's seed sets"
            )

    def _check_mirrors(self) -> None:
        """Refuse a crop that mirrors more pixels than the images have. Raises UserError."""
        for one in self.data.augment:
            if isinstance(one, Crop) and one.fill == "reflect" and one.crop >= (side := min(self.data.input_shape[1:])):
                raise UserError(f"data.augment: found crop {one.crop} with fill reflect; at most {side - 1} is allowed")

    def _check_tokens(self) -> None:
        """Refuse data without token ids, or with others than the model takes. Raises UserError."""
        data, model = self.data, self.config.model
        count = model.count_tokens(data.num_classes)
        if count is None:
            return
        if not data.tokens:
            raise UserError(f"model.name: {model.name} takes token ids, the data are {data.x_train.dtype}")
        each = [x for x in (data.x_train, data.x_test) if x.size]
        least, largest = min(int(x.min()) for x in each), max(int(x.max()) for x in each)
        if least < 0:
            raise UserError(f"model.name: {model.name} takes token ids from 0, the data have ids from {least}")
        if largest >= count:
            hint = "; set model.vocabulary" * ("vocabulary" in type(model).model_fields)
            raise UserError(
                f"model.name: {model.name} takes token ids below {count}, the data have ids up to {largest}{hint}"
            )


def prepare_data(data: Dataset, config: RunConfig) -> Dataset:
    """Merge training and test set with `data.test`, and resize images to the one size that the model takes."""
    if config.data.test is not None:
        data = data.merge()
    size = config.model.side
    shape = data.input_shape
    if size is None or len(shape) != 3 or shape[1:] == (size, size):
        return data
    log.info("%s: %dx%d images resized to %dx%d for %s", data.name, *shape[1:], size, size, config.model.name)
    try:
        return data.resize(size)
    except (RuntimeError, MemoryError) as error:  # raised by torch and by NumPy
        raise UserError(f"model: images cannot be resized to {size}x{size}: {join_lines(error)}") from None
