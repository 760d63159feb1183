"""The notebooks in examples/ run, cell by cell, in an empty folder; they are kept without outputs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["one_run", pytest.param("sweep_results", marks=pytest.mark.slow)]
"""The second one starts Ray and runs six cells."""


def cells(name: str) -> list[dict[str, Any]]:
    document = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    found: list[dict[str, Any]] = document["cells"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """As a script: the last expression of each cell is printed, as a notebook shows it."""
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    assert len(code) > 4
    shown = ["import ast, matplotlib; matplotlib.use('Agg')"]
    for text in code:
        shown += [
            f"tree = ast.parse({text!r})",
            "last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None",
            "exec(compile(tree, 'cell', 'exec'))",
            "if last: print(repr(eval(compile(ast.Expression(last.value), 'cell', 'eval'))))",
        ]
    (tmp_path / "notebook.py").write_text("\n".join(shown), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
    environment |= {"PYTHONPATH": str(EXAMPLES.parent), "MPLCONFIGDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    accuracies = re.findall(r"test accuracy (\d+\.\d+) %.*>", run.stdout)
    assert len(accuracies) >= 1
    assert all(30 < float(accuracy) < 100 for accuracy in accuracies), "it has learnt something"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    code = [cell for cell in cells(path.stem) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert path.stem in {getattr(name, "values", [name])[0] for name in NAMES}, "every notebook is run"


def test_the_page_names_the_notebooks() -> None:
    text = (EXAMPLES.parent / "docs" / "python.md").read_text(encoding="utf-8")
    assert all(path.name in text for path in EXAMPLES.glob("*.ipynb"))
