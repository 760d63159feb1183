"""The numerics run without Ray, Tune and MLflow installed; imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedray"

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import fedray, fedray.engine.local_training, fedray.algorithms, fedray.engine.simulation, fedray.engine.worker, fedray.engine.checkpoint
result = fedray.simulate({"data": "digits", "partition": "iid", "model": {"name": "mlp", "hidden": [4]},
                          "algorithm": "fedtoga", "training": {"rounds": 1}, "clients": {"total": 5, "per_round": 2},
                          "runtime": {"backend": "inline"}})
print(result.summary()["rounds"], len(result.theta) == result.layout.size, len(result.history))
"""


def test_a_run_without_ray_and_mlflow() -> None:
    out = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert out.stdout.split() == ["1", "True", "1"], out.stderr


def imported(path: Path) -> set[str]:
    """Top-level packages and fedray modules that a file names in any import, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_only_the_named_modules_import_ray_or_mlflow(name: str) -> None:
    roots = {module.split(".")[0] for module in imported(PACKAGE / name)}
    assert "mlflow" not in roots or name == "tracking.py"
    assert "ray" not in roots or name in (
        "backend/ray.py",
        "trainable.py",
        "sweep.py",
        "cluster.py",
        "remote.py",
        "packing.py",
    )


LAYERS = [
    ("data/", "models/"),
    ("algorithms/",),
    ("config.py",),
    ("local.py", "problem.py"),
    ("worker.py", "backend/"),
    ("simulation.py",),
    ("checkpoint.py", "api.py", "trainable.py"),
    ("sweep.py", "plan.py"),
    ("cli.py",),
]


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name: str) -> None:
    """No module imports one of a later layer."""
    level = next((k for k, layer in enumerate(LAYERS) if name.startswith(layer)), None)
    if level is None:
        return
    for module in imported(PACKAGE / name):
        if module.startswith("fedray."):
            path = module.removeprefix("fedray.").replace(".", "/")
            other = next(
                (k for k, layer in enumerate(LAYERS) if f"{path}.py".startswith(layer) or f"{path}/".startswith(layer)),
                level,
            )
            assert other <= level or (name, path) == ("sweep.py", "plan"), f"{name} imports {module}"
