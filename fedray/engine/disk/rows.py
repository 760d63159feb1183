"""A run's evaluated rounds as text next to its checkpoints: `rows.jsonl`, one JSON object per line, for any program."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedray.common.errors import UserError
from fedray.common.whole_files import write_file


class RowFile:
    """`rows.jsonl` of a run; only the process that makes the run writes it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "rows.jsonl"
        self._lines: int | None = None  # None: the file was written by another process, or does not exist

    def follow(self, history: Sequence[Mapping[str, float]]) -> None:
        """Make the file hold exactly these rows, each once. Raises UserError if it cannot be written.

        New rows are appended. At the start of a process, and if a run has gone back to an earlier checkpoint, the whole
        file is replaced; otherwise the rows of repeated rounds would appear twice.
        """
        try:
            exists = self.path.is_file()
            if exists and self._lines is not None and self._lines <= len(history):
                if new := history[self._lines :]:
                    with self.path.open("ab") as file:
                        file.write(_write_lines(new))
            elif (content := _write_lines(history)) != (self.path.read_bytes() if exists else b""):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_file(self.path, content)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; make room and run the same command again to resume"
            ) from None
        self._lines = len(history)


def _write_lines(history: Sequence[Mapping[str, float]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in history).encode()
