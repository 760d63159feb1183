"""Which folders the wheel holds; everything else about the package stands in pyproject.toml.

The sweeps stay at the top of the repository, where people look for them, and are `fedray/sweeps` in the wheel.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["fedray*", "analysis*"]), "fedray.sweeps"],
    package_dir={"fedray.sweeps": "sweeps"},
    package_data={
        "analysis": ["published/*", "templates/*"],
        "fedray": ["py.typed"],
        "fedray.sweeps": ["**/*.yaml", "**/*.md"],
    },
)
