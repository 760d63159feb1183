"""Folders of the wheel; everything else about the package is in pyproject.toml.

The sweeps and the papers' numbers stay where people look for them; in the wheel they are
`fedray/sweeps`, `fedray/published` and `fedray/examples`.
"""

from setuptools import find_namespace_packages, find_packages, setup

SWEEPS = ["fedray.sweeps", *(f"fedray.sweeps.{folder}" for folder in find_namespace_packages("sweeps"))]
FOLDERS = ["fedray.analysis.templates", "fedray.examples", "fedray.published"]

setup(
    packages=[*find_packages(include=["fedray*"]), *FOLDERS, *SWEEPS],
    package_dir={
        "fedray.published": "analysis/published",
        "fedray.examples": "examples",
        "fedray.sweeps": "sweeps",
    },
    package_data={
        "fedray": ["py.typed"],
        "fedray.analysis.templates": ["*"],
        "fedray.published": ["*"],
        "fedray.examples": ["*.ipynb"],
        **{folder: ["*.yaml", "*.md", "*.sh", "*.json"] for folder in SWEEPS},
    },
)
