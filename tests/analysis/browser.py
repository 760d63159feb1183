"""A real headless browser, Debian's `chromium`, if it is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
    "--window-size=1200,1600",
)


def browser() -> str:
    """Return its path; skips if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser here ({', '.join(NAMES)}); Debian's package is chromium")
    return found


def opened(address: str, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's DOM once it is loaded, and what the console says."""
    done = subprocess.run(
        [browser(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", *flags, address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, re.findall(r":CONSOLE(?::|\().*", done.stderr)


def pictured(address: str, profile: Path, path: Path, *flags: str) -> Path:
    """A screenshot."""
    subprocess.run(
        [browser(), *FLAGS, f"--user-data-dir={profile}", f"--screenshot={path}", *flags, address],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return path
