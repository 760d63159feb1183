"""Folders of the wheel; everything else about the package is in pyproject.toml.

The sweeps and the papers' numbers stay where people look for them; in the wheel they are `fedray/sweeps` and
`fedray/published`.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["fedray*"]), "fedray.published", "fedray.sweeps"],
    package_dir={"fedray.published": "analysis/published", "fedray.sweeps": "sweeps"},
    package_data={
        "fedray": ["py.typed"],
        "fedray.analysis": ["templates/*"],
        "fedray.published": ["*"],
        "fedray.sweeps": ["**/*.yaml", "**/*.md"],
    },
)
