"""The generated reference is the one in docs/."""

from pathlib import Path

from fedray.pages.configuration import page


def test_configuration_reference_is_current() -> None:
    committed = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == page(), "run: python -m fedray.pages.configuration > docs/configuration.md"
