"""The environment of a run as a whole: packages, Python, libraries, processor, GPUs, container, threads.

A store holds each distinct environment once, as the artefact `environment.json` of a run of its own (`fedray.kind` is
`environment`). A cell's run names the environments that it was computed in by their hashes, in order, in the tag
`fedray.environment`; several if it was resumed in another one. They are those of the driver's process, and no part of
a cell's identity. Names of hosts, users and folders are not recorded, nor is the kernel's release.
"""

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.common.cpus import CPUINFO
from fedray.common.errors import UserError, format_count
from fedray.components.identity import hash_of
from fedray.tracking.store import read_artefact, search

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fedray.tracking.store import AnyClient, AnyRun

Environment = Mapping[str, Any]
"""Sections (`python`, `packages`, `cpu`, ...), in JSON types."""
TAG = "fedray.environment"
"""Tag of a cell's run: hashes, separated by spaces; of an environment's run: its own hash."""
KIND = "environment"
FILE = "environment.json"
THREADS = ("OMP_", "MKL_", "KMP_", "OPENBLAS_", "ONEDNN_", "ATEN_", "NVIDIA_TF32_OVERRIDE")
"""Beginnings of variables that set threads and instructions of the libraries that compute."""
MEMINFO = Path("/proc/meminfo")
MARKS = {"docker": Path("/.dockerenv"), "podman": Path("/run/.containerenv")}
"""Container -> file that it makes."""
PREFIX = "environment."
PACKAGES = ("torch", "torchvision", "numpy", "ray", "mlflow")


@cache
def collect_environment() -> Environment:
    """Return the environment of this process; a section is left out if there is nothing to say, such as a GPU."""
    total = _read_value(MEMINFO, "MemTotal")
    installed: dict[str, str] = {}  # the first on the path counts, as for imports
    # Ray puts copies of its own on the path once it is imported: a sweep imports it, a single run does not.
    for one in (one for one in distributions() if Path(str(one.locate_file(""))).name != "thirdparty_files"):
        installed.setdefault(one.metadata["Name"].lower().replace("_", "-"), one.version)
    import torch  # here: tables read environments without it

    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()[1:]]
    cuda, cudnn = torch.version.cuda, torch.backends.cudnn.version()
    found = {
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "system": _describe_system(),
        "container": _describe_container(os.environ),
        "cpu": _describe_cpu(),
        "memory": {"gib": round(int(total.split()[0]) / 2**20)} if total else {},
        "gpu": _describe_gpus(),
        "torch": {
            **({"cuda": cuda} if cuda else {}),
            **({"cudnn": str(cudnn)} if cudnn else {}),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "built_with": [line for line in lines if line and not line.startswith("Build settings")],
        },
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(THREADS)},
        "packages": dict(sorted(installed.items())),
    }
    return {section: content for section, content in found.items() if content}


def _describe_system() -> dict[str, str]:
    found = {"name": f"{platform.system()} {platform.machine()}"}
    try:
        found["distribution"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # not Linux, or a system without the file
        found["distribution"] = platform.platform()
    return found | ({"libc": " ".join(platform.libc_ver())} if platform.libc_ver()[0] else {})


def _describe_container(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `kind` and, if it is known, `image` of the container that this process is in; empty outside of one."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if path := variables.get(name):
            return {"kind": "apptainer", "image": Path(path).name}
    kind = next((kind for kind, mark in MARKS.items() if mark.exists()), "")
    kind = kind or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in variables else "")
    if kind == "podman" and (image := _read_value(MARKS[kind], "image=")):
        return {"kind": kind, "image": image.strip('"')}
    return {"kind": kind} if kind else {}


def _describe_cpu() -> dict[str, Any]:
    """Return the processor's name and flags as the kernel gives them, and the machine's number of logical CPUs."""
    found: dict[str, Any] = {"count": os.cpu_count() or 1}
    if name := _read_value(CPUINFO, "model name"):
        found["model"] = name
    if flags := _read_value(CPUINFO, "flags") or _read_value(CPUINFO, "Features"):
        found["flags"] = sorted(flags.split())
    return found


def _read_value(file: Path, label: str) -> str:
    """Return the text after `label` on the first line that begins with it; empty if there is none."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    line = next((line for line in lines if line.startswith(label)), "")
    return line.removeprefix(label).lstrip(" \t:").strip()


def _describe_gpus() -> dict[str, Any]:
    """Return NVIDIA's driver and the name and memory of each GPU, as `nvidia-smi` lists them; empty without it."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = [line.split(", ", 1) for line in text.splitlines() if ", " in line]
    return {"driver": lines[0][0], "models": [model for _, model in lines]} if lines else {}


def list_hashes(run: "AnyRun") -> list[str]:
    """Return the hashes of the environments that a cell's run names, in order; empty for an older version's run."""
    hashes: list[str] = run.data.tags.get(TAG, "").split()
    return hashes


def find_environment(client: "AnyClient", experiment: str, hash: str) -> "AnyRun | None":
    """Return the run that holds an environment; None if the store has none that is whole."""
    kept = f"tags.`fedray.kind` = '{KIND}' AND tags.`{TAG}` = '{hash}'"
    return next((run for run in search(client, experiment, kept) if run.info.status == "FINISHED"), None)


def keep_environment(client: "MlflowClient", experiment: str, found: Environment) -> str:
    """Store an environment unless the store has it, and return its hash."""
    hash = hash_of(found)
    if find_environment(client, experiment, hash) is None:
        tags = {"fedray.kind": KIND, TAG: hash}
        run = client.create_run(experiment, run_name=f"environment {hash}", tags=tags).info.run_id
        client.log_dict(run, dict(found), FILE)
        client.set_terminated(run, "FINISHED")  # last: a process may be killed before the artefact is there
    return hash


def read_environment(client: "AnyClient", experiment: str, hash: str) -> Environment:
    """Return an environment of the store.

    Raises:
        UserError: the store has none with this hash, or its artefact is missing or damaged.
    """
    run = find_environment(client, experiment, hash)
    if run is None:
        raise UserError(f"environment {hash}: this store has no run that holds it; it may have been deleted in MLflow")
    try:
        content: Environment = json.loads(read_artefact(client, run.info.run_id, FILE) or b"")
    except ValueError:
        raise UserError(f"environment {hash}: the artefact {FILE} of run {run.info.run_id} is missing") from None
    if hash_of(content) != hash:
        raise UserError(f"environment {hash}: the artefact {FILE} of run {run.info.run_id} has been changed")
    return content


def list_differences(environments: Sequence[Environment]) -> dict[str, list[str]]:
    """Return `section.key` -> its value in each environment, of the keys whose values differ.

    Of lists (flags, libraries) only the entries are given that not all environments have; `-` stands for none.
    """
    keys = dict.fromkeys((section, key) for one in environments for section, content in one.items() for key in content)
    found = {}
    for section, key in keys:
        values = [one.get(section, {}).get(key) for one in environments]
        if any(value != values[0] for value in values):
            found[f"{section}.{key}"] = _format_values(values)
    return found


def _format_values(values: Sequence[Any]) -> list[str]:
    if not any(isinstance(value, list) for value in values):
        return ["-" if value is None else str(value) for value in values]
    lists = [value or [] for value in values]
    common = set(lists[0]).intersection(*lists)
    return [", ".join(str(one) for one in value if one not in common) or "-" for value in lists]


def describe_differences(environments: Mapping[str, Environment], most: int = 5) -> str:
    """Return in which keys environments, by hash, differ: `packages.numpy (2.1.0 | 2.2.0) and 3 more`."""
    found = list_differences(list(environments.values()))
    parts = [f"{key} ({' | '.join(_shorten(value) for value in values)})" for key, values in found.items()]
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _shorten(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def describe_mixture(named: Mapping[str, Sequence[str]], read: Callable[[str], Environment]) -> str:
    """Return a sentence if cells come from different environments; empty if they do not, or if no cell names one.

    Args:
        named: cell -> hashes of its environments, none for a run of an older version.
        read: returns an environment; if it raises UserError, the sentence says so.
    """
    counts = Counter(hash for hashes in named.values() for hash in hashes)
    unknown = sum(not hashes for hashes in named.values())
    if not counts or len(counts) + (unknown > 0) == 1:
        return ""
    parts = [f"{hash} ({format_count(n, 'cell')})" for hash, n in counts.items()]
    parts += [f"not recorded ({format_count(unknown, 'cell')})"] if unknown else []
    said = f"the cells come from different environments: {', '.join(parts)}"
    if len(counts) == 1:
        return said
    try:
        return f"{said}; they differ in {describe_differences({hash: read(hash) for hash in counts})}"
    except UserError as error:
        return f"{said}; {error}"


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
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT  # here: tables read environments without it

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
