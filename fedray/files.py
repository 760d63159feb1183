"""YAML as users write it: safely loaded, `1e-3` is a number, a repeated key is refused."""

import re
from pathlib import Path
from typing import Any

import yaml

from fedray.errors import UserError


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats and without silent overwriting."""


_Loader.yaml_implicit_resolvers = {k: [r for r in v if r[0] != "tag:yaml.org,2002:float"]
                                   for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*([eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d[\d_]*([eE][-+]?\d+)?"
                             r"|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"line {node.start_mark.line + 1}: the key {key!r} stands there twice")
    return {key: loader.construct_object(value, deep=True) for key, (_, value) in zip(keys, node.value, strict=True)}


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
        raise UserError(f"{path}: holds {type(value).__name__}, a mapping is required")
    return value


def parse_yaml(text: str, name: str) -> Any:
    """The value of a YAML text; `name` says where it came from. Raises UserError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{name}:{line} is not YAML: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: is not YAML: {error}") from None
