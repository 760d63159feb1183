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
"""


def test_a_run_without_ray_and_mlflow() -> None:
    out = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert out.stdout.split() == ["1", "True", "1"], out.stderr
