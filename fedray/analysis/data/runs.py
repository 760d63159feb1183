"""One run of the store: its configuration, and its state in the newest checkpoint."""

from typing import TYPE_CHECKING, Any

from fedray.common.errors import UserError
from fedray.common.location import get_storage
from fedray.common.yaml_files import parse_yaml
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.state import State
from fedray.tracking.store import read_artefact

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient


def read_configuration(client: "AnyClient", run: str) -> dict[str, Any]:
    """Return the configuration of a cell's run from its artefact `config.yaml`, not parsed.

    run: its id. Raises UserError if it is missing or damaged.
    """
    content = read_artefact(client, run, "config.yaml") or b""
    config = parse_yaml(content.decode(errors="replace"), f"config.yaml of {run}")
    if not isinstance(config, dict):
        raise UserError(f"run {run}: its artefact config.yaml is {'damaged' if content else 'missing'}")
    return config


def load_newest_state(option: str, cell: str) -> State:
    """Return the state in a cell's newest checkpoint. Raises UserError, beginning with `option`, if none is intact."""
    directory = get_storage() / "cells" / cell
    checkpoints = Checkpoints(directory, cell)
    state = checkpoints.load()
    if state is not None:
        return state
    if rounds := checkpoints.list_rounds():
        raise UserError(
            f"{option}: none of its checkpoints in {directory} is whole (rounds {', '.join(map(str, rounds))}); call "
            "its sweep again with --force"
        )
    raise UserError(
        f"{option}: there is no checkpoint of it in {directory}; FEDRAY_STORAGE says where they are, and "
        "`fedray run --no-track` writes none"
    )
