"""Values that cross the border to a user's code, the CPU's flags, errors, the progress bar, YAML as users write it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import fedray
from fedray.algorithms import ALGORITHMS
from fedray.common import process
from fedray.common.calls import check_return, fits, make_plain
from fedray.common.errors import UserError, find_nearest, redact, shorten, truncate_repr, unknown
from fedray.common.process import treat_sigterm_as_interrupt
from fedray.common.progress import show_bar
from fedray.common.vectors import Vectors, mark_read
from fedray.common.yaml_files import parse_yaml


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (np.int64(3), int, True),
        (True, int, False),
        (3.0, int, False),
        (torch.tensor(0.5), float, True),
        (np.float32(0.5), float, True),
        ("0.5", float, False),
        (None, float, False),
        ("body", Literal["all", "body"], True),
        ("legs", Literal["all", "body"], False),
        ({"h": torch.zeros(2)}, Vectors, True),
        ({"h": 0.0}, Vectors, False),
        (None, Vectors, False),
        (None, int | None, True),
        ([1, 2], dict[str, Any], False),
    ],
)
def test_a_value_fits_an_annotation(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


def test_an_unknown_argument_names_the_function() -> None:
    """As Python does without the check."""
    for wrong in ({"metrics": ["x"]}, {}):
        with pytest.raises(TypeError, match=r"^run_sweep\(\) (got an unexpected|missing a required)"):
            fedray.run_sweep(**wrong)  # type: ignore[arg-type]


def test_a_result_of_another_type_is_refused_by_the_place_that_gives_it() -> None:
    assert check_return("here", lambda x: x, float)(0.5) == 0.5
    with pytest.raises(UserError, match=r"^here returns None; float is required$"):
        check_return("here", lambda x: None, float)(0.5)


def test_numbers_arrays_and_iterators_are_made_plain() -> None:
    """As YAML would give them: ints, floats, lists and dictionaries."""
    found = make_plain(
        "",
        {
            "seed": np.arange(2),
            "lr": [np.float32(0.5), torch.tensor(0.25)],
            "hidden": (4, 2),
            "rho": iter([1]),
            "none": None,
        },
    )
    assert found == {"seed": [0, 1], "lr": [0.5, 0.25], "hidden": [4, 2], "rho": [1], "none": None}
    assert [type(one) for one in found["seed"] + found["lr"]] == [int, int, float, float]


@pytest.mark.parametrize(
    ("value", "place"),
    [({"a": {"b": object()}}, "a.b"), ({"a": [1, {2}]}, "a.1"), ({"a": np.zeros((2, 2))}, "a"), ({"a": {1: 2}}, "a")],
)
def test_what_no_file_can_hold_is_refused_by_its_key(value: Any, place: str) -> None:
    with pytest.raises(UserError, match=rf"^{place}: found .*; a number, a text, a list or a mapping"):
        make_plain("", value)


@pytest.fixture
def asked_again() -> Iterator[None]:
    process.has_bf16.cache_clear()
    yield
    process.has_bf16.cache_clear()


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
@pytest.mark.usefixtures("asked_again")
def test_bf16_is_read_from_the_flags(
    text: str | None, able: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x86 lists `flags`, Arm `Features`; a system that lists neither, or has no such file, does not say."""
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(process, "CPUINFO", file)
    assert process.has_bf16() is able


MANY = [f"metric_{number}" for number in range(60)]


def test_a_short_list_is_repeated() -> None:
    assert str(unknown("--kind", "bar", ["bars", "curves"])) == (
        "--kind: unknown name 'bar'; did you mean 'bars'? valid: bars, curves"
    )


def test_of_equally_near_names_one_letter_in_place_and_then_the_beginning_decide() -> None:
    assert "did you mean 'fedsam'? `x` lists them" in str(unknown("name", "fedsan", ALGORITHMS, "`x`"))
    assert find_nearest("abxx", ["xxab", "abyy"], 0.5) == "abyy"


def test_of_a_long_list_the_nearest_names_and_the_command_that_lists_all() -> None:
    """`metrc_12` lacks one letter of metric_12."""
    error = str(unknown("--metric", "metrc_12", MANY, "`fedray list metrics`"))
    assert error == "--metric: unknown name 'metrc_12'; did you mean 'metric_12'? `fedray list metrics` lists them"
    far = str(unknown("--metric", "zzzzz", MANY, "`fedray list metrics`"))
    assert far.startswith("--metric: unknown name 'zzzzz'; nearest: metric_")
    assert far.endswith("; `fedray list metrics` lists them")
    assert far.count("metric_") == 5


def test_without_a_command_that_lists_them_every_name_is_repeated_unless_one_is_near() -> None:
    assert all(name in str(unknown("key", "zzzzz", MANY)) for name in MANY)
    assert str(unknown("key", "metrc_12", MANY)) == "key: unknown name 'metrc_12'; did you mean 'metric_12'?"


@pytest.mark.parametrize("part", ["a", "a://", "a://b:", "?a=;", "@", "://", "\x1b[", "a.", " \n", "a b@"])
def test_removing_secrets_takes_a_time_proportional_to_the_length(part: str) -> None:
    """It is called on every message and log record: 80,000 letters took 55 s."""
    text, began = part * (80_000 // len(part)), time.process_time()
    redact(text)
    truncate_repr(type("Odd", (), {"__repr__": lambda self: text})())
    assert time.process_time() - began < 2


def test_a_line_keeps_its_beginning_and_its_end() -> None:
    text = "key: " + "x" * 10_000 + "; allowed: 1"
    assert len(shorten(text)) <= 500
    assert shorten(text).startswith("key: xx")
    assert shorten(text).endswith("; allowed: 1")
    assert shorten("short") == "short"


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


def test_the_bar_can_be_turned_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert tuple(shown(capsys, False)) == ("", "")


ANCHORS = "one: &one {a: 1, b: 2}\nother: &other {b: 3, c: 4}\n"


def merged(text: str) -> object:
    return parse_yaml(ANCHORS + text, "file")["x"]


def test_a_merge_gives_way_to_the_mappings_own_keys() -> None:
    assert merged("x: {<<: *one, b: 9}") == {"a": 1, "b": 9}
    assert merged("x: {b: 9, <<: *one}") == {"a": 1, "b": 9}, "wherever it stands"


def test_the_first_of_several_wins() -> None:
    """YAML's merge type: keys of mappings earlier in the list override those of later ones."""
    assert merged("x: {<<: [*one, *other]}") == {"a": 1, "b": 2, "c": 4}
    assert merged("x: {<<: *one, <<: *other}") == {"a": 1, "b": 2, "c": 4}


def test_merges_inside_of_merges() -> None:
    text = "x: &x {<<: *one, d: 5}\ny: {<<: *x, e: 6}\n"
    assert parse_yaml(ANCHORS + text, "file")["y"] == {"a": 1, "b": 2, "d": 5, "e": 6}


def test_a_key_that_is_written_twice_is_refused_beside_a_merge() -> None:
    with pytest.raises(UserError, match="the key 'b' "):
        merged("x: {<<: *one, b: 1, b: 2}")


@pytest.mark.parametrize("interrupt", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_sigterm_ends_a_block_also_of_a_background_job(interrupt: Any) -> None:
    """A shell starts a background job with SIGINT ignored; a handler of one's own is asked."""
    before = signal.signal(signal.SIGINT, interrupt), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), treat_sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before[1]
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_memory_on_a_gpu_is_kept_for_the_stream_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for a tensor on a GPU, which notes the stream, and for one on the CPU, which would raise."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "lane 2")
    noted: list[str] = []
    there: Any = SimpleNamespace(is_cuda=True, record_stream=noted.append)
    mark_read([there, torch.zeros(1), there])
    assert noted == ["lane 2", "lane 2"]


def test_a_line_that_a_message_repeats_is_short() -> None:
    said = r"f: line 2, column 1: is not YAML: a colon is missing: b{300,} \.\.\. b+:"
    with pytest.raises(UserError, match=said) as found:
        parse_yaml(f"a: 1\n{'b' * 6000}\n  b: 2\n", "f")
    assert len(str(found.value)) < 600
