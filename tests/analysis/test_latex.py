"""The LaTeX tables, compiled."""

import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fedray.analysis.tables.formats import to_latex
from fedray.analysis.tables.result_table import Entry, Printed, ResultTable

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


def test_a_table_with_everything_compiles(tmp_path: Path) -> None:
    """Every symbol, every character that TeX reads otherwise, in titles, rows, columns, notes; all kinds of entries."""
    odd = "a_b 100% c&d #1 $x^2 {y} ~z \\ ρ α β κ μ λ τ γ Λ η Φ ± × ≥ ‖ <|>"
    entries = {
        ("row", "plain"): Entry(80.0, 1.5, 3, Counter(), -1.25, Printed(81.0, 0.5)),
        (odd, "plain"): Entry(None, None, 0, Counter(missing=2, diverged=1)),
        ("row", odd): Entry(90.0, None, 1, Counter(), 1.5, Printed(None, None)),
    }
    ranks = {("row", "plain"): 1, ("row", odd): 2}
    for is_round in (False, True):
        table = ResultTable(
            odd,
            ["row", odd],
            ["plain", odd],
            {key: replace(one, is_round=is_round) for key, one in entries.items()},
            ranks,
            [odd],
            reference="row",
            label="tab:a_b.1",
        )
        source = tmp_path / "table.tex"
        source.write_text(DOCUMENT % to_latex(table), encoding="utf-8")
        assert "Missing character" not in compile_document(source)
