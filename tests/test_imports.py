"""The numerics run without Ray, Tune and MLflow installed. Which room imports which is checked by `make lint`."""

import subprocess
import sys

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import fedray, fedray.algorithms, fedray.engine.server.simulation, fedray.engine.disk.checkpoint
result = fedray.simulate({"data": "digits", "partition": "iid", "model": {"name": "mlp", "hidden": [4]},
                          "algorithm": "fedtoga", "training": {"rounds": 1}, "clients": {"total": 5, "per_round": 2},
                          "runtime": {"backend": "inline"}})
print(result.summary()["rounds"], len(result.theta) == result.layout.size, len(result.history))
class Mine(fedray.algorithms.Algorithm):
    pass
try:
    fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": Mine})
except fedray.UserError as error:
    print(error)
"""


def test_a_run_without_ray_and_mlflow() -> None:
    """A class that Ray's workers could not import is refused before Ray is imported."""
    out = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert out.stdout.splitlines() == [
        "1 True 1",
        "algorithm.name: Ray's workers cannot import __main__:Mine; put the class in a .py file, or set "
        "runtime.backend: inline",
    ], out.stderr
