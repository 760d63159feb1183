"""YAML as users write it: safely loaded, `1e-3` is a number, a repeated key is refused, `<<` merges."""

import io
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from fedray.common.errors import UserError, name_place, shorten, truncate_repr
from fedray.common.whole_files import MEMORY, read_file

ALIASED = 100_000
"""Maximum number of values that YAML's aliases may repeat in one file."""
LARGEST = 16 << 20
"""Maximum size of a YAML file in bytes."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats and without silent overwriting."""


_Loader.yaml_implicit_resolvers = {
    k: [r for r in v if r[0] != "tag:yaml.org,2002:float"] for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*\.?[\d_]*([eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d[\d_]*([eE][-+]?\d+)?"
        r"|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    """Return a mapping; keys merged by `<<:` come first, and the mapping's own keys override them."""
    mapping: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for key_node, value in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            merged = _merge(loader, value) | merged
            continue
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise UserError(
                f"line {line}: keys must be strings; quote {truncate_repr(key)}, or put several values in brackets"
            )
        if key in mapping:
            raise UserError(f"line {line}: the key {key!r} is repeated")
        mapping[key] = loader.construct_object(value, deep=True)
    return merged | mapping


def _construct_sequence(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    """Return a list; `[0.1, 0,6]` has a decimal comma, since other commas of the list have a space after them."""
    gaps = [right.start_mark.index - left.end_mark.index for left, right in itertools.pairwise(node.value)]
    for gap, (left, right) in zip(gaps, itertools.pairwise(node.value), strict=True):
        if node.flow_style and gap == 1 < max(gaps) and f"{left.value}{right.value}".isdecimal():
            number = f"{left.value}.{right.value}"
            raise UserError(
                f"line {left.start_mark.line + 1}: {left.value},{right.value} is two values; write {number}, "
                "or a space after the comma"
            )
    return [loader.construct_object(value, deep=True) for value in node.value]


def _merge(loader: _Loader, node: yaml.Node) -> dict[str, Any]:
    """Return the keys that `<<: *one` or `<<: [*one, *other]` merges; in a list the first mapping wins."""
    sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
    result: dict[str, Any] = {}
    for source in sources:
        if not isinstance(source, yaml.MappingNode):
            raise UserError(f"line {source.start_mark.line + 1}: `<<` merges mappings only")
        result = loader.construct_object(source, deep=True) | result
    return result


def _construct_integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Return an integer. YAML 1.1 reads 010 as 8 and 1:30 as 90; both are refused as ambiguous."""
    text, line = node.value, node.start_mark.line + 1
    value: int = loader.construct_yaml_int(node)
    if re.match(r"[-+]?0\d", text.replace("_", "")):
        raise UserError(f"line {line}: {text} is octal in YAML; write {int(text, 10)}, or quote it if it is a string")
    if ":" in text:
        raise UserError(
            f"line {line}: {text} is the number {value} in YAML; write {value}, or quote it if it is a string"
        )
    return value


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG, _construct_sequence)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises UserError that names file and line."""
    try:
        text = io.TextIOWrapper(io.BytesIO(read_file(path, LARGEST)), encoding="utf-8").read()  # any end of lines
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in UTF-8; save it as such") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a mapping, got {'nothing' if value is None else type(value).__name__}")
    return value


def is_yaml(name: Path | str) -> bool:
    """Return True if a name ends like that of a YAML file."""
    return str(name).endswith((".yaml", ".yml"))


def parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text; `name` is its origin, for messages. Raises UserError."""
    with name_place(name):
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_bomb(node)
            return loader.construct_document(node)
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            raise UserError(f"{where}is not YAML: {shorten(' '.join(problem.split()))}") from None
        except RecursionError:
            raise UserError("is not YAML: it is nested too deeply") from None
        except (ValueError, LookupError, AttributeError, TypeError) as error:  # a scalar that its tag does not allow
            raise UserError(f"is not YAML: {type(error).__name__}: {shorten(str(error))}") from None


def format_flow(value: Any) -> str:
    """Return a list or mapping as YAML on one line, as it can be typed again."""
    copied = json.loads(json.dumps(value, default=str))  # YAML would write `&id001` for an object that occurs twice
    text: str = yaml.safe_dump(copied, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.strip()


def locate(key: str, path: str) -> Path:
    """Return the path that a user wrote, `~` expanded. Raises UserError with the key if no file can have this path."""
    try:
        if not path or "\0" in path:
            wanted = "a path has no zero characters" if path else "a path is required"
            raise UserError(f"{key}: found {truncate_repr(path)}; {wanted}")
        return Path(path).expanduser()
    except RuntimeError as error:  # ~nobody
        raise UserError(f"{key}: found {truncate_repr(path)}: {error}") from None


def locate_file(key: str, path: str) -> Path:
    """Return the path of a file that is here, fits into memory and is regular: reading a pipe or a device may never
    end. Raises UserError with the key.
    """
    place = locate(key, path)
    if not _exists(key, place):
        raise UserError(f"{key}: {place} does not exist{'' if place.is_absolute() else f' in {Path.cwd()}'}")
    if not place.is_file():
        raise UserError(f"{key}: {place} is not a regular file")
    if (size := place.stat().st_size) > MEMORY:
        raise UserError(f"{key}: {place} has {size} bytes, and this machine {MEMORY} bytes of memory")
    return place


def locate_folder(key: str, path: str) -> Path:
    """Return the path of a folder, or of one that can be made. Raises UserError with the key."""
    place = locate(key, path)
    nearest = place if _exists(key, place) else next(filter(os.path.lexists, (place, *place.parents)))
    if not nearest.is_dir():
        raise UserError(f"{key}: {nearest} is not a folder")
    return place


def _exists(key: str, path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # its name is too long
        raise UserError(f"{key}: {path}: {error.strerror}") from None


def _refuse_bomb(root: yaml.Node) -> None:
    """Refuse aliases that repeat more than ALIASED values ("billion laughs"), or contain themselves.

    A text counts as one value, plus one for each ten characters.
    """
    sizes: dict[int, int | None] = {}
    written = 0

    def size(node: yaml.Node) -> int:
        nonlocal written
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise UserError(f"line {node.start_mark.line + 1}: the anchor contains itself")
            return known
        sizes[id(node)] = None
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (child if isinstance(child, tuple) else (child,) for child in children)
        own = 1 if isinstance(node, yaml.CollectionNode) else 1 + len(node.value) // 10
        written += own
        total = own + sum(size(inner) for pair in pairs for inner in pair)
        sizes[id(node)] = total
        return total

    if size(root) - written > ALIASED:
        raise UserError(f"its aliases repeat more than {ALIASED} values")
