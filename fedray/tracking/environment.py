"""The environment of a run, as tags: versions of Python and packages, system, processor, GPUs, and fedray's commit."""

import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import fedray
from fedray.common.errors import format_count

PREFIX = "environment."
PACKAGES = ("torch", "torchvision", "numpy", "ray", "mlflow")


def describe_mixture(runs: Iterable[Mapping[str, str]]) -> str:
    """Return a sentence on the tags in which the environments of runs differ, given each run's tags; empty for none."""
    environments = [{key: tags[key] for key in tags if key.startswith(PREFIX)} for tags in runs]
    parts = []
    for key in dict.fromkeys(key for tags in environments for key in tags):
        counts = Counter(tags.get(key, "not recorded") for tags in environments)
        if len(counts) > 1:
            values = ", ".join(f"{value} ({format_count(count, 'cell')})" for value, count in counts.items())
            parts.append(f"{key.removeprefix(PREFIX)} {values}")
    return f"the cells come from different environments: {'; '.join(parts)}" if parts else ""


@cache
def make_environment_tags() -> dict[str, str]:
    """Return `environment.KEY` -> value. `cpu` and `gpu` are named as by the kernel, each kind once; no GPU, no tag."""
    environment = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    environment |= {"fedray": fedray.__version__} | {name: version(name) for name in PACKAGES}
    for key, label, files in (
        ("cpu", "model name", ["/proc/cpuinfo"]),
        ("gpu", "Model:", sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))),
    ):
        texts = [path.read_text(encoding="utf-8") for path in map(Path, files) if path.exists()]
        lines = [line for text in texts for line in text.splitlines() if line.startswith(label)]
        if models := dict.fromkeys(line.removeprefix(label).lstrip(" \t:").strip() for line in lines):
            environment[key] = ", ".join(models)
    return {PREFIX + key: value for key, value in environment.items()}


@cache
def make_git_tags() -> dict[str, str]:
    """Return the commit of fedray's checkout, with `+changes` if it has uncommitted ones; empty outside a checkout."""
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT  # here: tables read environments without it

    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # git would take the repository of a folder above
        return {}
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
