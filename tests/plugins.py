"""Algorithms that hurt themselves, for tests: chosen in a configuration as `tests.plugins:Name`."""

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

import torch

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm, Client, Server, Sum
from fedray.common.vectors import Vectors


class _DiesOnce:
    """SIGKILLs its own process after a client's training, once, when the file `marker` exists (and removes it)."""

    marker: str

    def upload(self, c: Client) -> dict[str, Sum]:
        with contextlib.suppress(OSError):
            Path(self.marker).unlink()  # it succeeds in one process only, and raises IsADirectoryError for ""
            os.kill(os.getpid(), signal.SIGKILL)
        return super().upload(c)  # type: ignore[misc,no-any-return]


def dying(kind: type[Algorithm]) -> type[Algorithm]:
    """The algorithm, with the death above built in and the option `marker` added."""
    members = {"__annotations__": {"marker": str}, "marker": "", "__module__": __name__}
    return type(f"Dying{kind.__name__}", (_DiesOnce, kind), members)


globals().update({f"dying_{name}": dying(kind) for name, kind in ALGORITHMS.items()})


class Idle(Algorithm):
    """FedAvg with an option that nothing reads."""

    name = "idle"
    unused: float = 0.0


class Dies(Algorithm):
    """SIGKILLs its own process before a client's training, always."""

    name = "dies"

    def begin(self, c: Client) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAtNextCell(Algorithm):
    """Lets its process SIGKILL itself when Tune hands it the next cell, once, when the file `marker` exists."""

    name = "dies-at-next-cell"
    marker: str = ""

    def message(self, server: Server) -> Vectors:
        if Path(self.marker).is_file():
            from fedray.sweep.trainable import CellTrainable

            kind: type = CellTrainable
            while True:  # Ray's class for an actor has its own copies of the methods
                kind.reset_config = self._die  # type: ignore[attr-defined]
                if not (below := kind.__subclasses__()):
                    break
                kind = below[-1]
        return Vectors()

    def _die(self, *_: object) -> bool:
        Path(self.marker).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
        return False


class Hangs(Algorithm):
    """SIGSTOPs its own process before a client's training, once, when the file `marker` exists; leaves its id there."""

    name = "hangs"
    marker: str = ""

    def begin(self, c: Client) -> None:
        with contextlib.suppress(OSError):
            Path(self.marker).unlink()
            Path(f"{self.marker}.pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)


class HangsLate(Hangs):
    """The same in round 6; it naps, so that it has reported before."""

    name = "hangs_late"

    def begin(self, c: Client) -> None:
        time.sleep(0.3 if self.marker else 0)
        if c.lr < 0.1 * 0.9**4.5:
            super().begin(c)


class Greedy(Algorithm):
    """Wants `mebibytes` more than its process may have (RLIMIT_AS, for that moment) in round `round`, from 0."""

    name = "greedy"
    mebibytes: int = 0
    round: int = 1

    def begin(self, c: Client) -> None:
        if not self.mebibytes or c.lr > 0.1 * 0.9**self.round:
            return
        limits = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (self.mebibytes << 19), limits[1]))
        try:
            torch.zeros(self.mebibytes << 20, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


class FillsDisk(Algorithm):
    """While the file `marker` exists, from round `round` (from 0) on, no file can grow above 2 kB (RLIMIT_FSIZE)."""

    name = "fills_disk"
    marker: str = ""
    round: int = 5

    def message(self, server: Server) -> Vectors:
        full = self.marker and Path(self.marker).exists() and server.round >= self.round
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if full else unlimited, unlimited))
        return Vectors()


class NotANumber(Algorithm):
    """Its direction is NaN on clients with an odd number of samples, from the third round on (lr below 0.1 x 0.9²);
    otherwise that of FedAvg over the cohort's size."""

    name = "not_a_number"

    def message(self, server: Server) -> Vectors:
        return Vectors(cohort=torch.tensor(float(server.cohort)))

    def direction(self, c: Client) -> torch.Tensor:
        return c.grad(c.theta) * (float("nan") if c.samples % 2 and c.lr < 0.082 else 1 / c.message.cohort)


class BadState(Algorithm):
    """The state of client `bad` is infinite after its second participation; its update and its loss are not."""

    name = "bad_state"
    bad: int = -1

    def client_state(self, theta: torch.Tensor) -> Vectors:
        return Vectors(count=torch.zeros(1))

    def upload(self, c: Client) -> dict[str, Sum]:
        count = c.state.count + 1
        c.state = Vectors(count=count / 0 if c.id == self.bad and float(count) == 2 else count)
        return {}


class Slow(Algorithm):
    """FedAvg with a nap in every client, so that a test can interrupt it."""

    name = "slow"
    nap: float = 0.05

    def begin(self, c: Client) -> None:
        time.sleep(self.nap)


class StartsSlowly(Algorithm):
    """FedAvg with a nap of the server in its first round."""

    name = "starts_slowly"
    nap: float = 1.5

    def message(self, server: Server) -> Vectors:
        time.sleep(0 if server.round else self.nap)
        return Vectors()


class Where(Algorithm):
    """FedAvg that records where it trains: a line of node, process and the place of the training inputs in memory. The
    place is the inode of the mapped file and the offset in it; equal if processes share one copy."""

    name = "where"
    notes: str = ""

    def begin(self, c: Client) -> None:
        import ray

        address = c.population.samples._x.data_ptr()  # type: ignore[attr-defined]
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, offset, _, inode, *_ = line.split()
            start, end = (int(text, 16) for text in span.split("-"))
            if start <= address < end:
                place = f"{inode}:{int(offset, 16) + address - start}"
        with Path(self.notes).open("a") as notes:
            notes.write(f"{ray.get_runtime_context().get_node_id()} {os.getpid()} {place}\n")


class Raises(Algorithm):
    """A user's own mistake."""

    name = "raises"

    def direction(self, c: Client) -> torch.Tensor:
        raise ZeroDivisionError("on purpose")
