"""Environments of a sweep's runs as rows of a page."""

from dataclasses import dataclass

from fedray.analysis.data.collect import Collected
from fedray.common.errors import UserError


@dataclass(frozen=True)
class ShownEnvironment:
    """An environment on a page. rows: key and value; `missing`: why there are none, else empty."""

    hash: str
    rows: list[tuple[str, str]]
    missing: str = ""


def describe_environments(sweep: Collected) -> list[ShownEnvironment]:
    """Return the environments of a sweep's runs, in the order of its cells."""
    hashes = dict.fromkeys(hash for named in sweep.environments.values() for hash in named)
    return [_describe(sweep, hash) for hash in hashes]


def _describe(sweep: Collected, hash: str) -> ShownEnvironment:
    try:
        found = sweep.read_environment(hash)
    except UserError as error:
        return ShownEnvironment(hash, [], str(error))
    rows = [
        (f"{section}.{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for section, content in found.items()
        for key, value in content.items()
    ]
    return ShownEnvironment(hash, rows)
