r"""A table's entries as macros for LaTeX: `\fedray{quickstart/fedavg/dirichlet0.5}` in a text gives its number.

KEY           the entry, 96.29 ± 0.33, with a note if seeds are missing
KEY/mean      its mean alone; only for an entry with all its seeds
KEY/std       its standard deviation, likewise
KEY/change    with a reference, the difference from it or, for rounds, the speed-up

A key is SWEEP/ROW/COLUMN, and for another metric than the default one SWEEP/ROW/COLUMN/METRIC. It consists of ASCII
letters, digits, `.`, `-` and `/`, which no package of LaTeX makes active. It depends neither on numbers nor on display
names (`names` in a sweep file) nor on the order of rows and columns.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pandas as pd

from fedray.analysis.data.collect import get_symbol, iter_specs, list_always_named
from fedray.analysis.tables.formats import escape_tex, format_value
from fedray.analysis.tables.result_table import Entry, ResultTable
from fedray.cells.metric import DEFAULT
from fedray.cells.spec import CellSpec
from fedray.components.base import Component

PREAMBLE = r"""% Input this file before \begin{document}; then \fedray{KEY} prints the entry KEY of the list below.
\ifdefined\fedrayunknown\else
\DeclareRobustCommand{\fedrayunknown}[1]{\PackageWarning{fedray}{there is no entry #1}\textbf{??}}%
\newcommand{\fedray}[1]{\ifcsname fedray@#1\endcsname\csname fedray@#1\endcsname\else\fedrayunknown{#1}\fi}%
\fi
"""
"""`\fedray` is expandable, so it works in captions, headings and tables. An unknown key prints ?? and warns."""
DEFINITION = r"\expandafter\def\csname fedray@{}\endcsname{{{}}}%"


def to_macros(table: ResultTable) -> str:
    """Format every entry as a definition, a line each."""
    lines = [DEFINITION.format(key, value) for key, value in list_macros(table).items()]
    return f"% {table.command}\n" + PREAMBLE + "\n".join(lines) + "\n"


def list_macros(table: ResultTable) -> dict[str, str]:
    """Return key -> its text in LaTeX, in the table's order."""
    found = {}
    for row in table.rows:
        for column in table.columns:
            if (row, column) in table.entries:
                key = table.keys[row, column]
                for part, text in _list_parts(table.entries[row, column]):
                    found[key + part] = re.sub(r"\$(.*?)\$", r"\\ensuremath{\1}", text)
    return found


def _list_parts(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield end of the key -> LaTeX: the whole entry, then its parts."""
    whole = format_value(entry.mean, entry.std, entry.digits), entry.note
    yield "", " ".join(map(escape_tex, filter(None, whole)))
    if entry.whole and entry.mean is not None:
        yield "/mean", f"{entry.mean:.{entry.digits}f}"
        if entry.std is not None:
            yield "/std", f"{entry.std:.{entry.digits}f}"
    if entry.change is not None:
        told = f"{entry.change:.2f}×" if entry.is_round else f"{entry.change:+.{entry.digits}f}"
        yield "/change", escape_tex(told)


def without_names(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells without the sweep's display names, so that a changed name changes no key."""
    return cells.assign(spec=pd.Series([replace(one, names={}) for one in iter_specs(cells)], cells.index))


def make_words(shown: pd.Series, plain: pd.Series | str, cells: pd.DataFrame) -> dict[str, str]:
    """Return label as a table shows it -> its word in a key; different labels have different words.

    Args:
        shown: a label per cell, as in the table.
        plain: the same without display names.
        cells: their configurations.
    """
    labels = [plain] * len(shown) if isinstance(plain, str) else list(map(str, plain))
    short = [_shorten(label, spec) for label, spec in zip(labels, iter_specs(cells), strict=True)]
    words = _tell_apart(short)
    return {str(label): words[text] for label, text in zip(shown, short, strict=True)}


def make_key(sweep: str, row: str, column: str, metric: str) -> str:
    """Return the key of an entry.

    Args:
        sweep: its name.
        row: the row's word.
        column: the column's word.
        metric: as in tables.
    """
    parts = [*map(to_word, sweep.split("/")), row, column]
    return "/".join([*parts, *([to_word(metric)] if metric != DEFAULT else [])])


def to_word(text: str) -> str:
    """Return a text in letters, digits, `.` and `-`: `fedsam ρ=0.05` becomes `fedsam-rho0.05`."""
    for word, symbol in Component.symbols.items():
        text = text.replace(symbol, word)
    ascii = unicodedata.normalize("NFKD", text.replace("=", "")).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", ascii).strip("-.")


def _shorten(label: str, spec: CellSpec) -> str:
    """Return `dirichlet0.1` for `dirichlet α=0.1`: a required option, which each label names, needs no letter."""
    kind = str(spec.get("partition.name"))
    for key in list_always_named(spec):
        label = label.replace(f"{kind} {get_symbol(spec, *key.split('.', 1))}=", kind)
    return label


def _tell_apart(labels: Iterable[str]) -> Mapping[str, str]:
    """Return label -> word; labels whose words would be equal, or empty, end with a digest of their own."""
    words = {label: to_word(label) for label in labels}
    count = Counter(words.values())
    return {
        label: word if word and count[word] == 1 else f"{word}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"
        for label, word in words.items()
    }
