"""The generated reference is the one in docs/."""

from pathlib import Path

from docs.generate.configuration import page


def test_configuration_reference_is_current() -> None:
    committed = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == page(), "run: python -m docs.generate.configuration > docs/configuration.md"
