"""`fedray schema`: the JSON schema of a sweep's file or a run's, by which editors complete and check keys."""

import json
from typing import Any

from pydantic import BaseModel


def schema() -> None:
    """Print the JSON schema of sweep files and runs: `fedray schema > sweep.schema.json`."""
    from fedray.components.plugins import list_variants
    from fedray.config import COMPONENTS, PLAIN
    from fedray.sweep.file.sweep import Sweep

    definitions: dict[str, Any] = {}
    run: dict[str, Any] = {"seed": {"type": "integer", "minimum": 0}}
    run |= {name: _describe(kind, definitions) for name, kind in PLAIN.items()}
    run["evaluation"]["properties"]["probes"] = {"type": "array"}
    keys: dict[str, Any] = {"seed": {"type": "array"}}
    for name, (known, *_) in COMPONENTS.items():
        options: dict[str, Any] = {}
        registry = {**known, **list_variants()} if name == "algorithm" else known
        for kind in registry.values():
            for option, what in kind.model_json_schema()["properties"].items():
                said = f"{kind.name}: {what.get('description', option)}"
                options.setdefault(option, {"description": ""})["description"] += f"{said}\n"
        named = {"anyOf": [{"enum": sorted(registry)}, {"type": "string", "pattern": ":"}]}
        whole = {"type": "object", "required": ["name"], "properties": {"name": named} | options}
        run[name] = {"anyOf": [*named["anyOf"], whole]}
        keys |= {name: {"type": "array", "items": run[name]}}
        keys |= {f"{name}.{option}": what | {"type": "array"} for option, what in options.items()}
    for name, section in PLAIN.items():
        for option, field in section.model_fields.items():
            keys[f"{name}.{option}"] = {"type": "array", "description": field.description or option}
    sweep = Sweep.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= sweep.pop("$defs", {})
    base = {"type": "object", "properties": run, "additionalProperties": False}
    sweep["properties"]["base"] = base | {"patternProperties": {r"\.": True}}  # of a file that extends another
    sweep["properties"]["grid"] = {"type": "object", "properties": keys}
    sweep["properties"] |= {
        "cases": True,
        "smoke": True,
        "searcher": True,
        "scheduler": True,
        "extends": {"type": "string"},
    }
    sweep["required"] = ["name"]  # `base` may be that of the file that this one extends
    alone = base | {"required": [*COMPONENTS]}
    page = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "fedray", "$defs": definitions}
    print(json.dumps(page | {"if": {"required": ["name"]}, "then": sweep, "else": alone}, ensure_ascii=False))


def _describe(kind: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section, whose own definitions are added to the others."""
    found = kind.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= found.pop("$defs", {})
    return found
