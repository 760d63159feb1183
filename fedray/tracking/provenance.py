"""The environment of a run, for its tags: versions, processor and GPUs of the driver's machine."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

PREFIX = "environment."
PACKAGES = ("torch", "torchvision", "numpy", "ray", "mlflow")


@cache
def make_environment_tags() -> dict[str, str]:
    """Return `environment.KEY` -> value. `cpu` and `gpu` are named as by the kernel, each kind once; no GPU, no tag."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found |= {name: version(name) for name in PACKAGES}
    for key, label, files in (
        ("cpu", "model name", ["/proc/cpuinfo"]),
        ("gpu", "Model:", sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))),
    ):
        texts = [path.read_text(encoding="utf-8") for path in map(Path, files) if path.exists()]
        lines = [line for text in texts for line in text.splitlines() if line.startswith(label)]
        if models := dict.fromkeys(line.removeprefix(label).lstrip(" \t:").strip() for line in lines):
            found[key] = ", ".join(models)
    return {PREFIX + key: value for key, value in found.items()}


@cache
def make_git_tags() -> dict[str, str]:
    """Return the commit of fedray's checkout, with `+changes` if it has uncommitted ones; empty outside a checkout."""
    root = Path(__file__).parents[2]
    try:
        head, changes = (
            subprocess.run(  # noqa: S603
                ["git", "-C", str(root), *command],  # noqa: S607
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {MLFLOW_GIT_COMMIT: head + ("+changes" if changes else "")}
