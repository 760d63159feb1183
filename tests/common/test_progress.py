"""The progress bar of one run: when it is shown, and its text."""

import pytest

from fedray.common.progress import show_bar

ROWS = [{"round": 2.0, "test_accuracy": 91.25}]


def shown(capsys: pytest.CaptureFixture[str], asked: bool | None) -> tuple[str, str]:
    """Output and errors of a bar over three rounds; the second one is evaluated."""
    with show_bar("fedsam", 3, asked) as moved:
        moved(1, [])
        moved(2, ROWS)
    return capsys.readouterr()


def test_a_terminal_is_shown_rounds_and_the_last_accuracy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    out, err = shown(capsys, None)
    assert out == "", "results go to standard output, the bar does not"
    assert "fedsam" in err
    assert "2/3" in err
    assert "91.25 %" in err


def test_a_file_is_shown_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    assert tuple(shown(capsys, None)) == ("", "")


def test_it_can_be_turned_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert tuple(shown(capsys, False)) == ("", "")
