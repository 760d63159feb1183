"""The rows next to the checkpoints: each evaluated round once, after any interruption, kill or damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.common.errors import UserError
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.disk.rows import RowFile
from fedray.engine.loop import make_rounds
from tests.engine.test_loop import REPOSITORY, simulation


def rows(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def test_rows_are_there_while_the_run_makes_rounds(tmp_path: Path) -> None:
    """Rounds 2, 4, 6 and the last, 7, are evaluated; the only checkpoint, and so the folder, is made at the end."""
    folder = tmp_path / "cell"
    seen = [len(rows(folder)) if (folder / "rows.jsonl").exists() else 0 for _ in rounds_of(folder, every=100)]
    assert seen == [0, 0, 1, 1, 2, 2, 3, 4]
    made = (folder / "rows.jsonl").stat().st_mtime_ns
    assert rows(folder) == list(rounds_of(folder))[-1].history
    assert (folder / "rows.jsonl").stat().st_mtime_ns == made, "a finished run that is shown again writes nothing"


def rounds_of(directory: Path, every: int = 3):  # type: ignore[no-untyped-def]
    return make_rounds(simulation(), Checkpoints(directory), every)


KILLED = """
import os, sys, pathlib
from tests.engine.disk.test_rows import rounds_of
for state in rounds_of(pathlib.Path(sys.argv[1])):
    if state.round == 5:
        os._exit(9)  # as SIGKILL: nothing is closed, nothing is saved
"""


def test_a_killed_run_that_goes_on_has_no_row_twice_and_lacks_none(tmp_path: Path) -> None:
    """Killed after round 5 with a checkpoint of round 3: the row of round 4 is in the file, and is made again."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=120, check=False)
    assert ended.returncode == 9
    assert [row["round"] for row in rows(tmp_path)] == [2, 4]
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"round": 6, "test_acc')  # a line that the kill cut off
    states = rounds_of(tmp_path)
    assert next(states).round == 3
    assert [row["round"] for row in rows(tmp_path)] == [2], "what the checkpoint holds, before a round is made"
    last = list(states)[-1]
    assert [row["round"] for row in rows(tmp_path)] == [2, 4, 6, 7]
    assert rows(tmp_path) == last.history


def test_a_run_that_falls_back_takes_its_rows_back(tmp_path: Path) -> None:
    file = RowFile(tmp_path)
    history = [{"round": t, "test_accuracy": 10.0 * t} for t in range(1, 6)]
    for length in (1, 2, 3, 4, 2, 3, 4, 5):
        file.follow(history[:length])
        assert rows(tmp_path) == history[:length]


def test_rows_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(UserError) as caught:
        list(rounds_of(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}: cannot be written: Is a directory; make room")
