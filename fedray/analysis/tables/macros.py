r"""A table's entries as macros for LaTeX: `\fedray{quickstart/fedavg/dirichlet0.5}` in a text gives its number.

KEY           the entry, 96.29 ± 0.33, with a note if seeds are missing
KEY/mean      its mean alone; only for an entry with all its seeds
KEY/std       its standard deviation, likewise
KEY/change    with a reference, the difference from it or, for rounds, the speed-up
"""

import re
from collections.abc import Iterator

from fedray.analysis.tables.formats import escape_tex, format_value
from fedray.analysis.tables.result_table import Entry, ResultTable

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
