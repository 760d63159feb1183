"""YAML as users write it: what `<<` merges, and which of two equal keys is used."""

import pytest

from fedray.common.errors import UserError
from fedray.common.yaml_files import parse_yaml

ONE, OTHER = {"a": 1, "b": 2}, {"b": 3, "c": 4}
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


def test_what_is_no_mapping_is_refused_with_its_line() -> None:
    with pytest.raises(UserError, match="file: line 2: `<<` merges mappings only"):
        parse_yaml("a: 1\n<<: 3\n", "file")


def test_a_key_that_is_written_twice_is_refused_beside_a_merge() -> None:
    with pytest.raises(UserError, match="the key 'b' "):
        merged("x: {<<: *one, b: 1, b: 2}")
