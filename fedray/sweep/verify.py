"""`fedray verify NAME`: a sample of a sweep's finished cells is run again, and their hashes are compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedray.api import simulate
from fedray.common.errors import Diverged, UserError
from fedray.config import RunConfig
from fedray.tracking.archive import stored_sweep
from fedray.tracking.provenance import PREFIX, environment_tags

COMPARED = ("system", "cpu", "gpu", "torch")
"""What a run's last bits depend on beside its configuration, as `provenance` names it."""
HASHES = ("theta_sha256", "state_sha256")


@dataclass(frozen=True)
class Verdict:
    """What was found of one cell: `same`, `different` or `not comparable`, and why."""

    label: str
    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word:<14} {self.label}" + (f": {self.reason}" if self.reason else "")


def verify(name: str, count: int) -> Iterator[Verdict]:
    """Run some finished cells of a sweep again, in this process.

    Args:
        name: of a sweep in the store.
        count: how many; they are spread evenly over the sweep.

    Yields:
        A verdict for each.

    Raises:
        UserError: there is no such sweep, or it has no finished cell.
    """
    sweep = stored_sweep(name)
    finished = [
        cell
        for cell in sweep.cells
        if cell["hash"] in sweep.runs and sweep.runs[cell["hash"]].data.tags.get("fedray.status") == "finished"
    ]
    if not finished:
        raise UserError(f"{name}: has no finished cell to verify")
    count = min(count, len(finished))
    for k in range(count):
        cell = finished[k * len(finished) // count]
        yield _verdict(cell, sweep.runs[cell["hash"]].data.tags)


def _verdict(cell: Mapping[str, Any], tags: Mapping[str, str]) -> Verdict:
    label = str(cell["label"])
    here = environment_tags()
    for key in COMPARED:
        there, mine = tags.get(PREFIX + key), here.get(PREFIX + key)
        if there != mine and not (key == "gpu" and _on_cpu(cell["config"])):
            return Verdict(label, "not comparable", f"{key} was {there}, here it is {mine}")
    run = RunConfig.parse(cell["config"])
    config = run.model_copy(update={"runtime": run.runtime.inline})
    if config.cell(config.data.load().digest) != cell["hash"]:
        return Verdict(label, "not comparable", "its data, its plug-in or the meaning of its settings have changed")
    try:
        found = simulate(config).summary()
    except Diverged as error:
        return Verdict(label, "different", str(error))
    wrong = [key for key in HASHES if found[key] != tags.get(f"fedray.{key}")]
    return Verdict(label, "different" if wrong else "same", ", ".join(wrong))


def _on_cpu(config: Mapping[str, Any]) -> bool:
    return RunConfig.parse(config).runtime.torch_device == "cpu"
