"""The base of partitions: options, redraws until every client has enough samples, and clients' test sets."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError
from fedray.common.rng import generator, key_draws
from fedray.components.base import Component
from fedray.datasets.dataset import Dataset
from fedray.partitions.shards import Shards, draw_by_share, split_in_proportion

REDRAWS = 100


class Partition(Component):
    """Base of the partitioners. `min_size` is the smallest accepted shard (0: clients may be empty)."""

    section = "partition"
    splits: ClassVar[bool] = False
    """True if the partition itself lists test or validation samples (`get_held_out`)."""
    min_size: int = Field(1, ge=0, description="smallest shard accepted; 0 allows empty clients, never trained")
    seed: int | None = Field(None, ge=0, lt=2**32, description="seed of the split, if it draws; default: the run's")

    def _get_seed(self, seed: int) -> int:
        """Return the partition's own seed, or that of the run."""
        return seed if self.seed is None else self.seed

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        """Make one draw. labels: int64 `(n,)`."""
        raise NotImplementedError

    def split(self, data: Dataset, clients: int, seed: int) -> Shards:
        """Draw until every client has `min_size` samples, at most 100 times.

        Args:
            data: the whole data set.
            clients: N.
            seed: of the run; the partition's own `seed` replaces it.

        Raises:
            UserError: no draw satisfies `min_size`, or a user's own class does not draw N shards of training samples;
                the message names the key.
        """
        if clients * self.min_size > len(data.y_train):
            raise UserError(
                f"partition.min_size: {clients} clients x {self.min_size} samples are more than the "
                f"{len(data.y_train)} training samples"
            )
        seed = self._get_seed(seed)
        labels = data.y_train.view()
        labels.flags.writeable = False  # a draw that sorts them in place would change the data

        def draw(attempt: int) -> Shards:
            with key_draws(True, seed, "partition", attempt):
                shards = self.draw(labels, data.num_classes, clients, generator(seed, "partition", attempt))
            return self.check_dealt("draw", shards, clients, len(labels))

        for attempt in range(REDRAWS):
            shards = draw(attempt)
            if shards.sizes.min() < self.min_size:
                continue
            again = draw(attempt) if ":" in self.name else shards
            if not (np.array_equal(again.indices, shards.indices) and np.array_equal(again.offsets, shards.offsets)):
                raise UserError(
                    f"partition.name: {self.name} draws something else each time; draw from rng, or by numpy.random or "
                    "random, whose global generators the run's seed sets"
                )
            return shards
        raise UserError(
            f"partition.min_size: {self.name} left a client with {shards.sizes.min()} samples in each of "
            f"{REDRAWS} draws, {self.min_size} are required; lower clients.total or set min_size: 0"
        )

    def check_sizes(self, shards: Shards, what: str) -> Shards:
        """Return shards of at least `min_size` samples each. Raises UserError; `what` says who has too few."""
        if (small := shards.sizes.min()) < self.min_size:
            raise UserError(f"partition.min_size: {what} {small} samples, {self.min_size} are required")
        return shards

    def get_held_out(self, part: Literal["test", "validation"]) -> Shards | None:
        """Return the samples that the partition itself lists for testing or validation; None if it lists none."""
        return None

    def check_dealt(self, method: str, shards: object, clients: int, samples: int) -> Shards:
        """Return what a method of a user's own class has dealt to this many clients of this many samples.

        Raises UserError if it is not Shards of these samples for these clients.
        """
        name = f"partition.name: {self.name}"
        if not isinstance(shards, Shards):
            raise UserError(f"{name}.{method} returns a {type(shards).__name__}; Shards are required")
        arrays = np.asarray(shards.indices), np.asarray(shards.offsets)
        shown = " and ".join(f"{array.dtype} {array.shape}" for array in arrays)
        if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in arrays):
            raise UserError(f"{name} deals {shown}; int64 samples and ascending offsets are required")
        if len(shards) != clients:
            raise UserError(f"{name} deals to {len(shards)} clients; clients.total is {clients}")
        indices, offsets = arrays
        if offsets[0] < 0 or offsets[-1] != len(indices) or np.diff(offsets).min(initial=0) < 0:
            raise UserError(f"{name} deals {shown}; int64 samples and ascending offsets are required")
        if len(strange := indices[(indices < 0) | (indices >= samples)]):
            kind = "test" if method == "split_test" else "training"
            raise UserError(f"{name} deals the sample {strange[0]}; the {kind} set has samples 0 to {samples - 1}")
        return Shards(indices, offsets)

    def split_test(self, data: Dataset, shards: Shards, seed: int, how: Literal["share", "disjoint"]) -> Shards:
        """Return a test set for each client with the class mix of its training shard, for personal evaluation.

        Natural clients that come with test samples keep these.

        Args:
            data: the whole data set.
            shards: each client's training samples.
            seed: of the run.
            how: `share` is FedSOL's: floor(1000 x share of the class) test samples of each class, drawn for each client
                independently (test sets overlap). `disjoint` is FedGELA's: each test sample belongs to one client, and
                each class is dealt in proportion to the training samples of it (D-43: their Dirichlet code caps test
                sizes separately, which can change the mix; here it does not).
        """
        rng = generator(self._get_seed(seed), "partition test")
        counts = shards.count_labels(data.y_train, data.num_classes)
        return (draw_by_share if how == "share" else split_in_proportion)(counts, data.y_test, rng)
