"""The LaTeX tables, compiled; and any name in LaTeX and Markdown, read back."""

import re
import shutil
import subprocess
import unicodedata
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fedray.analysis.tables.formats import TEX, escape_tex, to_latex, to_markdown
from fedray.analysis.tables.published import PublishedNumber
from fedray.analysis.tables.result_table import Entry, ResultTable
from fedray.cells.metric import Metric
from fedray.common.errors import escape
from tests.conftest import each

DOCUMENT = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def find_compiler() -> str:
    """Return pdflatex if booktabs is installed, too; otherwise skip."""
    found, finder = shutil.which("pdflatex"), shutil.which("kpsewhich")
    if not found or not finder or subprocess.run([finder, "booktabs.sty"], capture_output=True, check=False).returncode:
        pytest.skip("no TeX here (pdflatex with booktabs); Debian's package is texlive-latex-recommended")
    return found


def compile_document(source: Path) -> str:
    """Make a PDF and return what pdflatex says."""
    call = [find_compiler(), "-interaction=nonstopmode", "-halt-on-error", source.name]
    done = subprocess.run(call, cwd=source.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert source.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    return done.stdout


def number(value: float | None, std: float | None) -> PublishedNumber:
    return PublishedNumber({}, "", "", Metric.parse("test_accuracy"), value, std, (), "")


def test_a_table_with_everything_compiles(tmp_path: Path) -> None:
    """Every symbol, every character that TeX reads otherwise, in titles, rows, columns, notes; all kinds of entries."""
    odd = "[a_b] 100% c&d #1 $x^2 {y} ~z \\ -- '' `é ß" + "".join(TEX) + "₀₁⁺²ᵀ"
    entries = {
        ("row", "plain"): Entry(80.0, 1.5, 3, Counter(), -1.25, number(81.0, 0.5)),
        (odd, "plain"): Entry(None, None, 0, Counter(missing=2, diverged=1)),
        ("row", odd): Entry(90.0, None, 1, Counter(), 1.5, number(None, None)),
    }
    ranks = {("row", "plain"): 1, ("row", odd): 2}
    for is_round in (False, True):
        rounds = {key: replace(one, is_round=is_round) for key, one in entries.items()}
        names = {"reference": "row", "label": "tab:a_b.1"}
        table = ResultTable(odd, ["row", odd], ["plain", odd], rounds, ranks, [odd], **names)
        source = tmp_path / "table.tex"
        source.write_text(DOCUMENT % to_latex(table), encoding="utf-8")
        assert "Missing character" not in compile_document(source)


def test_a_table_of_more_than_two_columns_takes_both_of_a_paper(tmp_path: Path) -> None:
    """Two columns of `91.00 ± 1.41` fit a column of a two-column paper, three do not. A class with one column prints
    both, too."""
    rows, written = ["dirichlet", "iid"], list[str]()
    for columns in (["a", "b"], ["a", "b", "c"]):
        entries = {(row, column): Entry(91.0, 1.41, 3, Counter()) for row in rows for column in columns}
        written.append(to_latex(ResultTable("s: t", rows, columns, entries, dict.fromkeys(entries, 1), [])))
    assert [re.findall(r"(?:begin|end)\{(table\*?)\}", one) for one in written] == [["table"] * 2, ["table*"] * 2]
    source = tmp_path / "table.tex"
    for options in ("[twocolumn]", ""):
        source.write_text(DOCUMENT.replace("{article}", options + "{article}") % "".join(written), encoding="utf-8")
        assert "Overfull" not in compile_document(source)


ASCII = "".join(map(chr, range(32, 127)))
SMALL = {"₀": "$_{0}$", "₉": "$_{9}$", "¹": "$^{1}$", "²": "$^{2}$", "ᵀ": "$^{T}$", "₋": "$_{-}$", "ₐ": "$_{a}$"}
NAMES = st.text(st.sampled_from([*ASCII, *TEX, *SMALL, *"éüßŁñ\n\x1b"]), min_size=1, max_size=20)


@given(NAMES)
def test_latex_prints_every_name_as_it_is(name: str) -> None:
    """TeX reads each command back as one character; of what is left, no character is special or joins another."""
    wanted, found, left = unicodedata.normalize("NFC", escape(name)), "", escape_tex(name)
    if name == "-":
        return
    back = sorted({command: sign for sign, command in (TEX | SMALL).items()}.items(), key=lambda one: -len(one[0]))
    while left:
        sign, command = next(((sign, command) for command, sign in back if left.startswith(command)), ("", ""))
        if not command and not left.startswith("{}"):
            assert left[0] not in "\\{}$&#%_^~`"
            assert left[:2] not in ("--", "''")
            sign = command = left[0]
        found, left = found + sign, left.removeprefix(command or "{}")
    assert found == wanted


@pytest.mark.parametrize("sign", ["中", "½"])
def test_a_character_without_a_command_is_named(sign: str, caplog: pytest.LogCaptureFixture) -> None:
    assert escape_tex(f"a{sign}{sign}") == f"a{sign}{sign}"
    assert caplog.text.count(f"LaTeX: {sign} (U+{ord(sign):04X}, {unicodedata.name(sign)}) has no command here") == 1


@each(
    (["fedavg", "*b"], ["", "fedavg", "{*}b"]),  # nothing to put into a second column
    (
        ["fedavg", "fedsam ρ=0.1", "fedsam ρ=0.2", "FedX (ours) ρ=0.1"],
        ["&$\\rho$", "fedavg&", "\\addlinespace", "fedsam&0.1", "&0.2", "\\addlinespace", "FedX (ours)&0.1"],
    ),
    (
        ["fedtoga α=0.1", "fedtoga α=1 lr=0.1", "[x] ρ=1"],
        ["&", "fedtoga&$\\alpha$=0.1", "&$\\alpha$=1 lr=0.1", "\\addlinespace", "{[}x]&$\\rho$=1"],
    ),
)
def test_options_have_a_column_of_their_own(rows: list[str], expected: list[str]) -> None:
    r"""A method is named once, a space follows its last row, and one option for all is named in the header. `\\` takes
    a length in brackets, or a star, also from the next line."""
    entries = {(row, "c"): Entry(1.0, None, 1, Counter()) for row in rows}
    lines = to_latex(ResultTable("s: t", rows, ["c"], entries, {}, [])).splitlines()
    body = [line for line in lines[5:-2] if line not in (r"\midrule", r"\bottomrule")]
    found = [line.rpartition(" & ")[0].replace(" & ", "&").strip() or line for line in body]
    assert found == [one or r" & c \\" for one in expected]


HEADERS = {
    "iid, dirichlet α=1": r" & iid & dirichlet $\alpha$=1 \\",  # nothing is shared
    "iid, dirichlet α=0.1, dirichlet α=1, [x] n=2": r"""
 & \multicolumn{1}{c}{iid} & \multicolumn{2}{c}{dirichlet} & \multicolumn{1}{c}{[x]} \\
\cmidrule(lr){2-2} \cmidrule(lr){3-4} \cmidrule(lr){5-5}
 &  & $\alpha$=0.1 & $\alpha$=1 & n=2 \\""",
    "split: final_iid": r" & split: final\_iid \\",  # a name of the user's, of no metric
    "fedavg, fedsam ρ=0.1, fedsam ρ=0.2": r"""
 & \multicolumn{1}{c}{fedavg} & \multicolumn{2}{c}{fedsam $\rho$} \\
\cmidrule(lr){2-2} \cmidrule(lr){3-4}
 &  & 0.1 & 0.2 \\""",
    "dirichlet α=0.1: test_accuracy, dirichlet α=0.1: rounds_to:90": r"""
 & \multicolumn{2}{c}{dirichlet $\alpha$=0.1} \\
\cmidrule(lr){2-3}
 & test accuracy \% & rounds to 90 \% \\""",
    # The caption says which rounds; only two of one kind need their prefix.
    "iid: last10_test_accuracy, iid: test_loss": r"""
 & \multicolumn{2}{c}{iid} \\
\cmidrule(lr){2-3}
 & test accuracy \% & test loss \\""",
    "iid: last10_test_accuracy, iid: test_accuracy": r"""
 & \multicolumn{2}{c}{iid} \\
\cmidrule(lr){2-3}
 & last10 test accuracy & test accuracy \\""",
    # The longest common beginning.
    "dirichlet α=1 rounds=3, dirichlet α=1 rounds=6, iid α=1 rounds=3": r"""
 & \multicolumn{2}{c}{dirichlet $\alpha$=1 rounds} & \multicolumn{1}{c}{iid $\alpha$=1 rounds} \\
\cmidrule(lr){2-3} \cmidrule(lr){4-4}
 & 3 & 6 & 3 \\""",
}
"""Columns -> the header of their table."""


@pytest.mark.parametrize("columns", HEADERS)
def test_columns_of_a_split_stand_below_its_name(columns: str) -> None:
    table = ResultTable("s: t", ["row"], columns.split(", "), {}, {}, [], is_joined="test_" in columns)
    lines = to_latex(table).splitlines()
    expected = HEADERS[columns].removeprefix("\n").splitlines()
    assert lines[lines.index(r"\toprule") + 1 : lines.index(r"\midrule")] == expected


class Cells(HTMLParser):
    """The text of each cell of a table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.texts += [""] * (tag in ("th", "td"))

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


@given(NAMES, NAMES)
def test_markdown_shows_every_name_as_it_is(row: str, column: str) -> None:
    """Rendered with the tables and strikethrough of GitHub; it trims spaces at the ends of a cell."""
    page = MarkdownIt("gfm-like", {"linkify": False}).render(to_markdown(ResultTable("t", [row], [column], {}, {}, [])))
    found = Cells(page.partition("<table>")[2].partition("</table>")[0]).texts
    assert [one.strip() for one in found] == ["", escape(column).strip(), escape(row).strip(), ""]


def test_a_difference_has_a_minus() -> None:
    entries = {("row", "c"): Entry(1.0, None, 1, Counter(), -1.08), ("row", "d"): Entry(1.0, None, 1, Counter(), 0.31)}
    text = to_latex(ResultTable("s: t", ["row"], ["c", "d"], entries, {}, [], reference="fedavg"))
    assert r"row & 1.00 ($-$1.08) & 1.00 (+0.31) \\" in text
    below = {("row", "c"): Entry(-1.5, 0.71, 2, Counter()), ("row", "d"): Entry(-2.0, None, 2, Counter())}
    text = to_latex(ResultTable("s: t", ["row"], ["c", "d"], below, {("row", "c"): 1}, []))
    assert r"row & \textbf{$-$1.50 $\pm$ 0.71} & $-$2.00 \\" in text
