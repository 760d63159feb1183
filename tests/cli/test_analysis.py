"""`fedray tables ...` is `python -m analysis.tables ...`, and costs nothing before it is called."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedray.cli.analysis import SCRIPTS
from fedray.cli.main import app


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_scripts_own(script: str) -> None:
    """The options come from analysis/: `--out`, say, which the forwarding command does not know."""
    result = CliRunner().invoke(app, [script, "--help"])
    assert result.exit_code == 0
    expected = {"tables": "--best-but", "compare": "--confidence", "sharpness": "--run"}.get(script, "--out")
    assert expected in result.output
    assert f"{script} [OPTIONS]" in result.output


def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedray.cli", "compare", "quickstart"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "fedray: Missing option '--to'.\n")


def test_the_command_line_imports_no_script() -> None:
    code = (
        "import sys, fedray.cli.analysis; print([n for n in sys.modules if n.split('.')[0] in ('analysis', 'pandas')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
