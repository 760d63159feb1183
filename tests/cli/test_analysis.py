"""`fedray tables ...` is `python -m analysis.tables ...`, and costs nothing before it is called."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedray.cli.analysis import COMMANDS
from fedray.cli.main import app

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_commands_own(command: str) -> None:
    """The options come from fedray/analysis/commands/: `--out`, say, which the forwarding command does not know."""
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    expected = {"tables": "--best-except", "compare": "--confidence", "sharpness": "--run"}.get(command, "--out")
    assert expected in result.output
    assert f"{command} [OPTIONS]" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_checkout_has_each_as_a_script(command: str) -> None:
    call = [sys.executable, "-m", f"analysis.{command}", "--help"]
    done = subprocess.run(call, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert f"analysis.{command} [OPTIONS]" in done.stdout


def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedray.cli", "compare", "quickstart"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "fedray: Missing option '--reference'.\n")


def test_the_command_line_imports_no_analysis() -> None:
    code = (
        "import sys, fedray.cli.analysis\n"
        "print([n for n in sys.modules if n.startswith(('fedray.analysis', 'pandas'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
