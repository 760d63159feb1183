"""`fedray tables ...` is `python -m analysis.tables ...`, and costs nothing before it is called."""

import runpy
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedray.cli.main import LAZY, app
from tests.conftest import Call

COMMANDS = [*LAZY]
OWN = {
    "tables": "--best-except",
    "compare": "--confidence",
    "sharpness": "--run",
}
"""Command -> what its help alone has, or one of few; the others have `--out`."""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_commands_own(command: str) -> None:
    """The options come from fedray/analysis/commands/: `--out`, say."""
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert OWN.get(command, "--out") in result.output
    assert f"{command} [OPTIONS]" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_checkout_has_each_as_a_script(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"analysis/{command}.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"analysis.{command}", run_name="__main__")
    assert OWN.get(command, "--out") in capsys.readouterr().out


def test_there_are_19_commands_with_112_parameters_at_most() -> None:
    group: Any = typer.main.get_command(app)
    commands = [group.get_command(None, name) for name in group.list_commands(None)]
    commands = [each for one in commands for each in getattr(one, "commands", {"": one}).values()]
    assert len(commands) <= 19
    assert sum(len(command.params) for command in commands) <= 112


def test_a_mistake_is_one_line_and_exit_code_2(call: Call) -> None:
    assert call("compare") == (2, "", "fedray: Missing argument 'name'.\n")
