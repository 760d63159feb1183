"""A free port of this machine, for a server that a test starts."""

import socket

import pytest


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number
