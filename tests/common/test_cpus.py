"""What a CPU can do, by the lines that Linux writes about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedray.common import cpus


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    cpus.has_bf16.cache_clear()
    yield
    cpus.has_bf16.cache_clear()


@pytest.mark.parametrize(
    ("text", "able"),
    [
        ("model name\t: AMD EPYC\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("bugs\t\t: bf16\nflags\t\t: fpu avx2\n", False),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd\n", False),
        ("processor\t: 0\n", None),
        (None, None),
    ],
)
def test_bf16_is_read_from_the_flags(
    text: str | None, able: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x86 lists `flags`, Arm `Features`; a system that lists neither, or has no such file, does not say."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(cpus, "CPUINFO", file)
    assert cpus.has_bf16() is able
