"""Facts stated in several places of a release agree; the tested versions are within the ranges."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import fedray

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_comes_from_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedray.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fedray.__version__
    assert f"## {fedray.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_tested_versions_lie_within_the_ranges() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    tested = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    ranges = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[:1].isalpha()]
    for line in [*ranges, *PROJECT["project"]["optional-dependencies"]["dev"]]:
        wanted = Requirement(line)
        assert tested[wanted.name.lower()] in wanted.specifier, line


def test_make_installs_the_tested_versions_and_the_hosted_build_calls_ci() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"pip install .*-c constraints\.txt -r requirements\.txt", makefile)
    assert re.search(r"^test-faults: .*\n\t.* -m faults( |$)", makefile, re.MULTILINE), "by its mark, wherever it lies"
    steps = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff", "format", "mypy", "imports"]


def test_modules_tell_one_thing() -> None:
    """A module of more than 600 lines tells several things."""
    modules = (ROOT / "fedray").rglob("*.py")
    assert not [path for path in modules if len(path.read_text(encoding="utf-8").splitlines()) > 600]
