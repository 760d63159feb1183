"""YAML as users write it: safely loaded, `1e-3` is a number, a repeated key is refused, `<<` merges."""

import re
from pathlib import Path
from typing import Any

import yaml

from fedray.common.errors import UserError, truncated_repr

MERGE = "tag:yaml.org,2002:merge"
ALIASED = 100_000
"""How many values YAML's aliases may repeat in one file."""


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


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    """A mapping; what `<<:` merges into it stands first and gives way to the mapping's own keys."""
    found: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for key_node, value in node.value:
        if key_node.tag == MERGE:
            merged = _merged(loader, value) | merged
            continue
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise UserError(f"line {line}: the key {truncated_repr(key)} is no text; in quotes it is")
        if key in found:
            raise UserError(f"line {line}: the key {key!r} stands there twice")
        found[key] = loader.construct_object(value, deep=True)
    return merged | found


def _merged(loader: _Loader, node: yaml.Node) -> dict[str, Any]:
    """The keys that `<<: *one` or `<<: [*one, *other]` brings; of a list the first mapping wins."""
    sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
    result: dict[str, Any] = {}
    for source in sources:
        if not isinstance(source, yaml.MappingNode):
            raise UserError(f"line {source.start_mark.line + 1}: `<<` merges mappings only")
        result = loader.construct_object(source, deep=True) | result
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds {'nothing' if value is None else type(value).__name__}, a mapping is required")
    return value


def parse_yaml(text: str, name: str) -> Any:
    """The value of a YAML text; `name` says where it came from. Raises UserError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_bomb(node)
        return loader.construct_document(node)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UserError(f"{name}:{line} is not YAML: {reason}") from None
    except RecursionError:
        raise UserError(f"{name}: is not YAML: it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # a scalar that its tag does not allow
        raise UserError(f"{name}: is not YAML: {type(error).__name__}: {error}") from None


def located(key: str, path: str) -> Path:
    """A path as a user wrote it, `~` expanded. Raises UserError naming the key where no file can have it."""
    try:
        if "\0" in path:
            raise UserError(f"{key}: found {truncated_repr(path)}; a path has no zero characters")
        return Path(path).expanduser()
    except RuntimeError as error:  # ~nobody
        raise UserError(f"{key}: found {truncated_repr(path)}: {error}") from None


def _refuse_bomb(root: yaml.Node) -> None:
    """Refuse aliases that repeat each other into more than ALIASED values ("billion laughs"), or contain themselves."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise UserError(f"line {node.start_mark.line + 1}: the anchor contains itself")
            return known
        sizes[id(node)] = None
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (child if isinstance(child, tuple) else (child,) for child in children)
        total = 1 + sum(size(inner) for pair in pairs for inner in pair)
        sizes[id(node)] = total
        return total

    if size(root) - len(sizes) > ALIASED:
        raise UserError(f"its aliases repeat more than {ALIASED} values")
