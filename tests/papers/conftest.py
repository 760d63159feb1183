"""The store of `tests.analysis`, for the papers too."""

from tests.analysis.conftest import store

__all__ = ["store"]
