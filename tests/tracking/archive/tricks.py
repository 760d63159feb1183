"""Archives that a stranger could send: an exported one, changed and packed again."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.common.errors import UserError
from fedray.tracking.archive.merge import import_sweep
from tests.tracking.archive.archived import FEDAVG, cell

CELL = cell(FEDAVG, 0.1, 0)
RUN = f"runs/{CELL['hash']}/run.json"
FOLDER = f"runs/{CELL['hash']}/artifacts"

Members = list[tuple[zipfile.ZipInfo, bytes]]
"""What an archive holds, in its order."""
Trick = Callable[[Members], Members]


def pack(file: Path, members: Members) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return file


def refuse(store: Path, message: str) -> None:
    """`evil.zip` is refused in one line, which holds the message and nothing that steers a terminal."""
    with pytest.raises(UserError) as caught:
        import_sweep(store / "evil.zip")
    assert str(caught.value).startswith(f"{store / 'evil.zip'}: cannot be read as an archive of fedray: ")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
