"""Flower's simulation and pfl-research, each from PyPI in an environment of its own, with this environment's torch."""

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.pairs import System

WANTED = {"flower": "flwr[simulation]", "pfl": "pfl[pytorch]"}


def started(work: str, processes: int) -> tuple[list[System], dict[str, str]]:
    """Return the started peers, and for those not installed why not. On w0 pfl-research also runs in one process."""
    systems, missing = [], {}
    root = Path(os.environ.get("FEDRAY_PEERS") or Path(tempfile.gettempdir()) / f"fedray-peers-{os.getuid()}")
    for name in WANTED:
        try:
            python, version = environment(name, root)
        except (subprocess.SubprocessError, OSError) as error:
            missing[name] = f"{WANTED[name]} cannot be installed on Python {sys.version.split()[0]}: {_last(error)}"
            continue
        print(f"{name}: {version}", flush=True)
        for n in (processes, 1) if name == "pfl" and work == "w0" else (processes,):
            label = name + (", one process" if n < processes else "")
            systems.append(
                System(
                    label,
                    [str(python), "-m", f"benchmarks.systems.{name}", work, str(n)],
                    {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(root / "home")},
                    log=root / f"{name}-{n}.log",
                )
            )
    return systems, missing


def environment(name: str, root: Path) -> tuple[Path, str]:
    """Return the peer's interpreter, installing the peer if needed, and its version."""
    home, package = root / name, WANTED[name].partition("[")[0]
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"installing {WANTED[name]} into {home}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=120)
        install = [str(python), *["-m", "pip", "install", "--quiet", "--disable-pip-version-check"], WANTED[name]]
        install.append(f"torch=={metadata.version('torch')}")
        subprocess.run(install, check=True, capture_output=True, timeout=600)
        (home / "ready").touch()
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    told = subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True, timeout=60)
    return python, told.stdout.strip()


def _last(error: Exception) -> str:
    told = getattr(error, "stderr", None) or str(error)
    lines = (told.decode() if isinstance(told, bytes) else told).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
