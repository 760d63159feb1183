"""Macros of a table's entries: their keys, and LaTeX that accepts them."""

import re
import subprocess
from pathlib import Path

import pytest

from fedray.analysis.commands.tables import main
from fedray.analysis.data.collect import collect
from fedray.analysis.tables.build import build
from fedray.analysis.tables.macros import list_macros, to_word
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, write
from tests.analysis.test_latex import compile_document, find_compiler

SAFE = re.compile(r"[A-Za-z0-9./-]+")
AVERAGE = "sweep/fedavg/dirichlet0.5"


def two_seeds(store: Tracker) -> None:
    """fedavg 80 and 84: 82 ± 2.83; ρ=0.1 90 and 92: 91 ± 1.41; ρ=0.5 99, and one seed diverged."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1)]
    write(store, cells, [80, 84, 90, 92, 99, ("diverged", 0)])


def test_a_macro_for_each_entry(store: Tracker) -> None:
    """The mean alone is left out for an entry that lacks a seed, so that no text states it without the note."""
    two_seeds(store)
    assert list_macros(build(collect("sweep"))) == {
        AVERAGE: r"82.00 \ensuremath{\pm} 2.83",
        f"{AVERAGE}/mean": "82.00",
        f"{AVERAGE}/std": "2.83",
        "sweep/fedsam-rho0.1/dirichlet0.5": r"91.00 \ensuremath{\pm} 1.41",
        "sweep/fedsam-rho0.1/dirichlet0.5/mean": "91.00",
        "sweep/fedsam-rho0.1/dirichlet0.5/std": "1.41",
        "sweep/fedsam-rho0.5/dirichlet0.5": "99.00 (1 diverged)",
    }
    changed = list_macros(build(collect("sweep"), reference="fedavg"))
    assert changed["sweep/fedsam-rho0.1/dirichlet0.5/change"] == "+9.00"
    assert changed[f"{AVERAGE}/change"] == "+0.00"
    both = list_macros(build(collect("sweep"), "last10_test_accuracy,rounds_to:90"))
    assert both[AVERAGE] == r"82.00 \ensuremath{\pm} 2.83"
    assert both["sweep/fedsam-rho0.1/dirichlet0.5/rounds-to-90"] == r"1.0 \ensuremath{\pm} 0.0"
    assert both[f"{AVERAGE}/rounds-to-90"] == "-- (2 never)"


def test_keys_depend_on_neither_names_nor_order_nor_numbers(store: Tracker) -> None:
    """Another order, other numbers and display names: the same keys, which LaTeX accepts."""
    cells = [cell(a, alpha, 0) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL, LARGE)]
    write(store, cells, range(len(cells)), "first")
    names = {"fedsam": "FedSAM (ours) $\\%_#", "algorithm.rho": "r", "partition.alpha": "a"}
    write(store, [one | {"names": names} for one in reversed(cells)], [None] * len(cells), "second")
    first, second = (build(collect(name)) for name in ("first", "second"))
    assert "FedSAM (ours) $\\%_# r=0.1" in second.rows
    expected = {
        f"{row}/{column}"
        for row in ("fedavg", "fedsam-rho0.1", "fedsam-rho0.5")
        for column in ("dirichlet0.5", "dirichlet0.1")
    }
    assert {key.partition("/")[2] for key in first.keys.values()} == expected
    assert {key.partition("/")[2] for key in second.keys.values()} == expected
    assert all(SAFE.fullmatch(key) for key in (*first.keys.values(), *second.keys.values()))


def test_different_labels_have_different_keys(store: Tracker) -> None:
    """`my:A` and `my.A`-like names would be the same word: both get a digest, the same in any order."""
    odd = [{"name": "my_mod:A"}, {"name": "my-mod:A"}, {"name": "你好"}]
    cells = [cell(a, 0.5, 0) for a in odd]
    write(store, cells, [1] * len(cells), "a_b/c")
    write(store, cells[::-1], [None] * len(cells), "turned")
    keys = build(collect("a_b/c")).keys
    assert len(set(keys.values())) == len(odd)
    assert all(SAFE.fullmatch(key) for key in keys.values())
    assert all(key.startswith("a-b/c/") for key in keys.values())
    turned = build(collect("turned")).keys
    assert {entry: key.removeprefix("a-b/c/") for entry, key in keys.items()} == {
        entry: key.removeprefix("turned/") for entry, key in turned.items()
    }


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ("fedsam ρ=0.05", "fedsam-rho0.05"),
        ("cifar10 dirichlet α=0.1 total=100", "cifar10-dirichlet-alpha0.1-total100"),
        ("best baseline", "best-baseline"),
        ("a:b_c~d#e^f{g}", "a-b-c-d-e-f-g"),
        ("größe", "groe"),
    ],
)
def test_words(label: str, word: str) -> None:
    assert to_word(label) == word


def test_averages_and_the_best_baseline_have_keys(store: Tracker) -> None:
    cells = [cell(a, alpha, 0) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL)]
    write(store, cells, [10, 20, 30, 40])
    found = build(collect("sweep"), average_over="partition", best_except="fedsam")
    assert list_macros(found)["sweep/best-baseline/mean-over-partition"] == "20.00"
    assert list_macros(found)["sweep/fedsam/mean-over-partition/mean"] == "30.00"


def test_the_file(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first line is the command that writes it; the table is printed as without the option."""
    two_seeds(store)
    main(["sweep"], reference="fedavg", macros=tmp_path / "deep" / "numbers.tex")
    printed = capsys.readouterr()
    assert printed.out.startswith("**sweep: test accuracy")
    assert printed.err == f"{tmp_path / 'deep' / 'numbers.tex'}\n"
    lines = (tmp_path / "deep" / "numbers.tex").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "% fedray tables sweep --reference fedavg --macros numbers.tex"
    assert rf"\expandafter\def\csname fedray@{AVERAGE}/mean\endcsname{{82.00}}%" in lines
    for line in lines:
        assert line.count("{") == line.count("}")
    with pytest.raises(UserError, match="--macros: gives a macro per entry of a table; --format seeds has none"):
        main(["sweep"], "seeds", macros=tmp_path / "x.tex")
    with pytest.raises(UserError, match=r"--macros: .*numbers.tex/x.tex cannot be written"):
        main(["sweep"], macros=tmp_path / "deep" / "numbers.tex" / "x.tex")


DOCUMENT = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[%s]{babel}
\usepackage{booktabs}
%s
\input{numbers}
\input{numbers}
\begin{document}
\section{From \fedray{sweep/fedavg/dirichlet0.5/mean}}
FedAvg has |\fedray{sweep/fedavg/dirichlet0.5}|, $x = \fedray{sweep/fedsam-rho0.1/dirichlet0.5}$.
\begin{table}\caption{With \fedray{sweep/fedavg/dirichlet0.5}}\begin{tabular}{cc}
\fedray{sweep/fedsam-rho0.5/dirichlet0.5} & \fedray{sweep/nobody} \\
\end{tabular}\end{table}
\input{table}
\end{document}
"""


@pytest.mark.parametrize(("language", "more"), [("english", ""), ("french,main=german", r"\usepackage{underscore}")])
def test_latex_accepts_them(store: Tracker, tmp_path: Path, language: str, more: str) -> None:
    """In a heading, a caption, mathematics and a table, also with active characters; an unknown key warns."""
    find_compiler()
    two_seeds(store)
    main(["sweep"], "latex", out=tmp_path / "table.tex", macros=tmp_path / "numbers.tex")
    if subprocess.run(["kpsewhich", "frenchb.ldf"], capture_output=True, check=False).returncode:
        language, more = "english", ""
    (tmp_path / "paper.tex").write_text(DOCUMENT % (language, more), encoding="utf-8")
    for _ in range(2):
        said = compile_document(tmp_path / "paper.tex")
    assert "Package fedray Warning: there is no entry sweep/nobody" in said
    assert "82.00" in (tmp_path / "paper.aux").read_text()
