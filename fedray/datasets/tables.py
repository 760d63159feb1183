"""A table of your own: `data: {name: csv, path: own.csv, label: ..., client: ...}`."""

import csv
import io
import logging
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.common.errors import UserError, escape, restate, truncate_repr, unknown
from fedray.common.whole_files import open_file
from fedray.common.yaml_files import locate_file
from fedray.components.identity import FILE
from fedray.datasets.base import DataSource
from fedray.datasets.dataset import Dataset

log = logging.getLogger("fedray")
TEXTS = 1000
"""Largest number of different texts in a column of features; a column with more holds names or ids."""
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
"""A plain decimal. Python reads more: `1_000`, digits of other scripts."""
LISTED = 20
"""Names in a message."""
SMALL = 1e-140
"""Spread of a column below which squares underflow."""
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class Table(dict[str, np.ndarray]):
    """Column -> its fields as text, `(n,)`. first: number of rows of the file of data.path, which come first."""

    first = 0


class Csv(DataSource):
    """A comma-separated table with a header; each row is a sample, and each column not named below a feature.

    Numbers are plain decimals such as -1.5 and 2e-3, and are standardised. A column of texts or codes is named in
    `texts`; each of its values becomes a feature of 0 and 1. Labels and clients are numbered in sorted order: as
    numbers if all of them are numbers. The test set is `test_path`, the rows with `test` in the column `split`, or part
    of each client's rows (`data.test`).
    """

    name = "csv"
    path: Annotated[str, FILE] = Field(description="the .csv file")
    label_column: str = Field(alias="label", description="column of the classes: texts or integers")
    client: str | None = Field(None, description="column of the natural clients, for `partition: natural`")
    split: str | None = Field(None, description="column with `train` or `test` in each row")
    test_path: Annotated[str | None, FILE] = Field(
        None, description="a second file with the same columns: the test set"
    )
    drop: tuple[str, ...] = Field((), description="columns that are not used")
    texts: tuple[str, ...] = Field((), description="columns of texts or codes: each value becomes a feature of 0 and 1")
    standardise: bool = Field(
        True, description="numbers get mean 0 and deviation 1 over the training rows (with `data.test`: all rows)"
    )
    missing_values: Literal["refuse", "mean"] = Field(
        "refuse", alias="missing", description="empty numbers: refused, or the mean of the column's training rows"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        ways = [key for key in ("split", "test_path", "test") if getattr(self, key) is not None]
        if len(ways) != 1:
            found = " and ".join(ways) or "no test set"
            raise UserError(f"data: found {found}; one of split, test_path and test: {{from: clients}} is required")
        named = [name for name in (self.label_column, self.client, self.split) if name is not None]
        named += {self.label_column} & {*self.drop, *self.texts}
        if twice := [name for name in named if named.count(name) > 1]:
            raise UserError(f"data: the column {truncate_repr(twice[0])} is named for two purposes")
        return self

    def load(self) -> Dataset:
        table = self._read("path", self.path)
        count = len(table[self.label_column])
        if self.test_path is not None:
            files = [locate_file(f"data.{key}", getattr(self, key)) for key in ("path", "test_path")]
            if files[0].samefile(files[1]):
                raise UserError(f"data.test_path: {files[1]} is the file of data.path; other rows are required")
            second = self._read("test_path", self.test_path)
            if strange := sorted(set(table) ^ set(second)):
                raise UserError(f"data.test_path: only one of both files has the column {truncate_repr(strange[0])}")
            table = Table({name: np.concatenate([column, second[name]]) for name, column in table.items()})
        table.first = count
        is_test = np.arange(len(table[self.label_column])) >= count
        if self.split is not None:
            is_test = table[self.split] == "test"
            self._refuse_row(table, self.split, ~is_test & (table[self.split] != "train"), "train or test is required")
        if is_test.all() or not (is_test.any() or self.test):
            raise UserError(f"data.split: {self.path} has no row for {'training' if is_test.all() else 'testing'}")
        used = {self.label_column, self.client, self.split, *self.drop}
        named = [name for name in table if name not in used]
        if not named:
            raise UserError(f"data.path: {self.path} has no column for features")
        if words := [name for name in named if name not in self.texts and not any(map(NUMBER.fullmatch, table[name]))]:
            listed = ", ".join([*map(truncate_repr, words[:LISTED]), *["..."] * (len(words) > LISTED)])
            formed = any(re.fullmatch(r"[+-]?[\d.,]*\d ?%?", text) for name in words for text in table[name])
            hint = "; a number is a plain decimal, such as 1000 for 1,000 and 0.05 for 5%" * formed
            raise UserError(
                f"data.texts: {self.path} has columns without a number; `texts: [{listed}]`, or `drop`{hint}"
            )
        features = [
            self._make_choices(table, name) if name in self.texts else self._make_numbers(table, name, ~is_test)
            for name in named
        ]
        x = np.concatenate(features, axis=1).astype(np.float32)
        y = self._encode(table, self.label_column)
        clients = None if self.client is None else self._encode(table, self.client)
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
        client_train, client_test = (None if clients is None else clients[rows] for rows in (train, test))
        arrays = x[train], y[train], x[test], y[test]
        return Dataset(self.name, *arrays, int(y.max()) + 1, client_train=client_train, client_test=client_test)

    def _read(self, key: str, path: str) -> Table:
        """Read a file; fields lose the blanks around them. Raises UserError."""
        file = locate_file(f"data.{key}", path)
        with (
            restate(f"data.{key}: {file} is not a readable table", OSError, ValueError),
            io.TextIOWrapper(open_file(file), newline="", encoding="utf-8-sig") as opened,
        ):
            lines = list[list[str]]()
            try:
                for row in csv.reader(opened, strict=True):
                    if row:
                        lines.append([field.strip() for field in row])
            except UnicodeDecodeError:
                raise UserError(f'data.{key}: {file} is not UTF-8; save it so (Excel: "CSV UTF-8")') from None
            except csv.Error as error:
                found = f"row {len(lines)} cannot be read: {error}"
                raise UserError(f"data.{key}: {file}: {found}; is a quote not closed, or not doubled?") from None
        header, *rows = lines or [[]]
        if not rows:
            raise UserError(f"data.{key}: {file} has no rows below its header")
        for place, name in enumerate(header, 1):
            if name in ("", "Unnamed: 0") and name not in self.drop:  # the latter is pandas' name for the former
                raise UserError(
                    f"data.{key}: {file}: column {place} has no name, as the row numbers that pandas writes; "
                    f"name it, or leave it out with data.drop: [{name!r}]"
                )
        if twice := [name for name in header if header.count(name) > 1]:
            raise UserError(f"data.{key}: {file} has two columns {truncate_repr(twice[0])}")
        named = {"label": self.label_column, "client": self.client, "split": self.split}
        several = [(option, name) for option in ("drop", "texts") for name in getattr(self, option)]
        if self.label_column not in header and (marks := [mark for mark in SEPARATORS if mark in "".join(header)]):
            raise UserError(
                f"data.{key}: {file} has {SEPARATORS[marks[0]]} in its header; commas between the columns are "
                "required, and numbers with a decimal point"
            )
        for option, name in [*named.items(), *several]:
            if name is not None and name not in header:
                raise unknown(f"data.{option}", name, header)
        for number, row in enumerate(rows, 1):
            if len(row) != len(header):
                raise UserError(f"data.{key}: {file}: row {number} has {len(row)} fields, the header {len(header)}")
        return Table({name: np.array([row[i] for row in rows], dtype=object) for i, name in enumerate(header)})

    def _refuse_row(self, table: Table, name: str, wrong: np.ndarray, what: str) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value, second = truncate_repr(table[name][row]), row >= table.first
            place = f"test_path: {self.test_path}" if second else f"path: {self.path}"
            row += 1 - table.first * second
            raise UserError(f"data.{place}: row {row}, column {name}: found {value}; {what}")

    def _encode(self, table: Table, name: str) -> np.ndarray:
        """Return the position of each row's text among the sorted texts, int64 `(n,)`; numbers sort as numbers."""
        self._refuse_row(table, name, table[name] == "", "a value is required")
        names = sorted(set(table[name]))
        refuse_two_spellings(f"data.path: {self.path}: column {name}", names)
        numbers = set(filter(NUMBER.fullmatch, names))
        if name == self.label_column and numbers:
            whole = {text for text in numbers if Decimal(text) == Decimal(text).to_integral_value()}
            is_wrong = np.array([text not in whole for text in table[name]])
            self._refuse_row(table, name, is_wrong, "classes are integers, or texts without a number among them")
        if len(numbers) == len(names):
            names.sort(key=Decimal)
        places = {text: place for place, text in enumerate(names)}
        return np.array([places[text] for text in table[name]], dtype=np.int64)

    def _make_choices(self, table: Table, name: str) -> np.ndarray:
        """Return a feature of 0 and 1 for each text of a column, `(n, texts)`."""
        self._refuse_row(table, name, table[name] == "", "a text is required")
        texts, positions = np.unique(table[name].astype(str), return_inverse=True)
        if len(texts) > TEXTS:
            raise UserError(f"data.drop: column {name} holds {len(texts)} different texts; allowed are {TEXTS}")
        if len(texts) == len(table[name]):
            raise UserError(f"data.drop: column {name} has another text in each row, as an id; leave it out")
        return np.eye(len(texts))[positions]

    def _make_numbers(self, table: Table, name: str, is_train: np.ndarray) -> np.ndarray:
        """Return the numbers of a column, `(n, 1)`."""
        is_empty, is_number = table[name] == "", np.array([NUMBER.fullmatch(text) is not None for text in table[name]])
        self._refuse_row(
            table,
            name,
            ~is_number & ~is_empty,
            "a plain decimal such as -1.5 or 2e-3 is required; a missing one is left empty, a column of codes named in "
            "data.texts",
        )
        values = np.where(is_number, table[name], "nan").astype(np.float64)
        known = values[is_train & ~is_empty]
        if self.missing_values == "refuse" or not len(known):
            self._refuse_row(table, name, is_empty, "a number is required; data.missing: mean fills it in")
        self._refuse_row(table, name, ~is_empty & ~(np.abs(values) < 1e38), "a finite number is required")
        values[is_empty] = known.mean()
        if self.standardise:
            train = values[is_train]
            if 0 < (spread := np.ptp(train)) < SMALL:
                values, train = values / spread, train / spread
            # The computed mean and deviation of equal numbers can differ from that number and from 0 by rounding.
            mean, deviation = (train.mean(), train.std()) if np.ptp(train) else (train[0], 1.0)
            values = (values - mean) / deviation
            self._refuse_row(table, name, ~(np.abs(values) < 1e38), "too far from the training rows' mean for float32")
        elif len(np.unique(values)) > 2 * (kept := len(np.unique(values.astype(np.float32)))):
            found = f"{len(np.unique(values))} different numbers; float32 keeps {kept} of them"
            log.warning("csv: column %s has %s, standardise: true keeps more", escape(name), found)
        return values[:, None]


def refuse_two_spellings(where: str, names: Iterable[str]) -> None:
    """Raise UserError for two spellings of one number, such as 5 and 05, or two Unicode forms of one name."""
    known: dict[str | Decimal, str] = {}
    for name in names:
        visible = (c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
        form = "".join(str(unicodedata.digit(c, c)) for c in visible)
        other = known.setdefault(Decimal(form) if NUMBER.fullmatch(form) else form, name)
        if other != name:
            raise UserError(f"{where}: found {other!a} and {name!a}, two spellings of one; use one of them")
