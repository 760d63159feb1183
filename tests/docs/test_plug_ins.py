"""docs/plug-ins.md, followed from an empty folder: a method, a partition, a data set and a probe, one file each."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedray

ROOT = Path(fedray.__file__).parents[1]
PAGE = (ROOT / "docs/plug-ins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:python|yaml)\n(# (\S+)\n.*?)```", PAGE, flags=re.DOTALL)
FILES = {name: text for text, name in BLOCKS}
COMMANDS = re.findall(r"^    ((?:fedray|python) .*)$", PAGE, flags=re.MULTILINE)
FEDRAY = [sys.executable, "-c", "import sys; sys.path.remove(''); from fedray.cli.main import main; main()"]


def execute(folder: Path, command: str) -> str:
    program, *arguments = shlex.split(command)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
    words = FEDRAY if program == "fedray" else [sys.executable]
    done = subprocess.run(
        [*words, *arguments],
        cwd=folder,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_page_works_from_an_empty_folder(tmp_path: Path) -> None:
    """The derived numbers hold; the sweep runs on Ray's workers; table and figure know the probe's metric."""
    assert sorted(FILES) == [
        "lookback.py",
        "lookback.yaml",
        "momscaf.py",
        "moons.py",
        "quantity.py",
        "test_lookback.py",
        "test_momscaf.py",
        "travelled.py",
        "twice.py",
    ]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = {command: execute(tmp_path, command) for command in COMMANDS}
    assert "2 passed" in said["python -m pytest test_lookback.py"]
    assert "2 passed" in said["python -m pytest test_momscaf.py"]
    assert "2 finished" in said["fedray sweep lookback.yaml"]
    for command in ("fedray tables lookback", "fedray tables lookback --metric travelled"):
        row = next(line for line in said[command].splitlines() if "lookback:LookBack" in line)
        assert re.search(r"\d\.\d", row), row
        assert "quantity:Quantity π=1.0" in said[command]
    assert "length of the averaged update" in said["fedray tables lookback --metric travelled"]
    drawn = sorted(path.name for path in (tmp_path / "figures").rglob("*.png"))
    assert len(drawn) == 1, drawn
