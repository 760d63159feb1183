"""The generated reference is the one in docs/."""

from pathlib import Path

from fedray.reference import reference


def test_configuration_reference_is_current() -> None:
    committed = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == reference(), "run: python -m fedray.reference > docs/configuration.md"
