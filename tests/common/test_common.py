"""Values that cross the border to a user's code, the CPU's flags, errors, the progress bar, YAML as users write it."""

import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import fedray
from fedray.algorithms import ALGORITHMS
from fedray.common import process
from fedray.common.calls import fits, make_plain
from fedray.common.errors import UserError, redact, shorten, truncate_repr, unknown
from fedray.common.process import treat_sigterm_as_interrupt
from fedray.common.progress import show_bar
from fedray.common.vectors import Vectors, mark_read
from fedray.common.yaml_files import parse_yaml
from tests.conftest import each


@each(
    (np.int64(3), int, True), (True, int, False), (torch.tensor(0.5), float, True), ("0.5", float, False),
    ("body", Literal["all", "body"], True), ("legs", Literal["all", "body"], False),
    ({"h": torch.zeros(2)}, Vectors, True), ({"h": 0.0}, Vectors, False), (None, Vectors, False),
    (None, int | None, True), ([1, 2], dict[str, Any], False),
)  # fmt: skip
def test_a_value_fits_an_annotation(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


def test_numbers_arrays_and_iterators_are_made_plain() -> None:
    """As YAML would give them: ints, floats, lists and dictionaries."""
    given = {"seed": np.arange(2), "lr": [np.float32(0.5), torch.tensor(0.25)], "hidden": (4, 2), "rho": iter([1])}
    found = make_plain("", given | {"none": None})
    assert found == {"seed": [0, 1], "lr": [0.5, 0.25], "hidden": [4, 2], "rho": [1], "none": None}
    assert [type(one) for one in found["seed"] + found["lr"]] == [int, int, float, float]


@each(
    ("model name\t: AMD EPYC\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
    ("bugs\t\t: bf16\nflags\t\t: fpu avx2\n", False), ("Features\t: fp asimd bf16 i8mm\n", True),
    ("processor\t: 0\n", None), (None, None),
)  # fmt: skip
def test_flags_tell_bf16(text: str | None, able: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """x86 lists `flags`, Arm `Features`; a system that lists neither, or has no such file, does not say."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(process, "CPUINFO", tmp_path / "cpuinfo")
    assert process.has_bf16.__wrapped__() is able


MANY = [f"metric_{number}" for number in range(60)]


@each(
    (("bar", ["bars", "curves"]), "name 'bar'; did you mean 'bars'? valid: bars, curves"),
    (("metrc_12", MANY, "`list`"), "name 'metrc_12'; did you mean 'metric_12'? `list` lists them"),
    (("metrc_12", MANY), "name 'metrc_12'; did you mean 'metric_12'?"),
    (("zzzzz", MANY, "`list`"), "name 'zzzzz'; `list` lists them"),
    (("zzzzz", MANY), f"name 'zzzzz'; valid: {', '.join(sorted(MANY))}"),
    (("fedsan", ALGORITHMS, "`list`"), "name 'fedsan'; did you mean 'fedsam'? `list` lists them"),
)
def test_an_unknown_name_is_told_the_nearest_and_how_to_list_all(given: Any, said: str) -> None:
    """All names if they are few, or if no command lists them and none is near."""
    assert str(unknown("--kind", *given)) == f"--kind: unknown {said}"


@pytest.mark.parametrize("part", ["a", "a://b:", "?a=;", "@", "\x1b[", " \n"])
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


@pytest.mark.parametrize(("terminal", "asked"), [(True, None), (True, False), (False, None)])
def test_a_terminal_is_shown_rounds_and_the_last_accuracy_unless_it_is_turned_off(
    terminal: bool, asked: bool | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "120"}.items() if terminal else ():
        monkeypatch.setenv(name, value)  # rich then takes the stream for a terminal
    with show_bar("fedsam", 3, asked) as moved:
        moved(1, [])
        moved(2, [{"round": 2.0, "test_accuracy": 91.25}])
    out, err = capsys.readouterr()
    assert out == "", "results go to standard output, the bar does not"
    assert all((part in err) == (terminal and asked is None) for part in ("fedsam", "2/3", "91.25 %"))


ANCHORS = "one: &one {a: 1, b: 2}\nother: &other {b: 3, c: 4}\n"


@each(
    ("x: {b: 9, <<: *one}", {"a": 1, "b": 9}),
    ("x: {<<: [*one, *other]}", {"a": 1, "b": 2, "c": 4}),
    ("x: {<<: *one, <<: *other}", {"a": 1, "b": 2, "c": 4}),
    ("y: &y {<<: *one, d: 5}\nx: {<<: *y, e: 6}", {"a": 1, "b": 2, "d": 5, "e": 6}),
)
def test_a_merge_gives_way_to_own_keys_and_the_first_of_several_wins(text: str, expected: dict[str, int]) -> None:
    """YAML's merge type, in merges as well; a key that is written twice beside it is refused."""
    assert parse_yaml(ANCHORS + text, "file")["x"] == expected
    with pytest.raises(UserError, match="the key 'b' "):
        parse_yaml(ANCHORS + "x: {<<: *one, b: 1, b: 2}", "file")


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


def test_an_unknown_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run_sweep\(\) missing a required argument"):
        fedray.run_sweep(metrics=["x"])  # type: ignore[call-arg]
