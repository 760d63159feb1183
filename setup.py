"""Which folders the wheel holds; everything else about the package stands in pyproject.toml.

The sweeps and the papers' numbers stay where people look for them, and are `fedray/sweeps` and `fedray/published` in
the wheel.
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
