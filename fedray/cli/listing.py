"""`fedray list`: what you can choose from, one line each, or an entry's page; `fedray schema`: keys, for editors."""

import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from fedray.common.entry import Json, format_json
from fedray.common.errors import FORMS, LISTS, UserError, unknown

SECTIONS = {listed: section for section, listed in LISTS.items()}
"""Listed kind -> the section of a configuration that chooses it."""
KINDS = (*SECTIONS, "metrics", "sweeps", "clusters")
OWN_CLASS = {"type": "string", "pattern": ":"}
"""JSON schema of `package.module:Class`."""


def complete(what: str, incomplete: str) -> list[str]:
    """Return the names that begin so: of a listed kind, of the `kinds`, or of the `stored` sweeps."""
    if what == "stored":
        from fedray.tracking.store import find_sweeps, open_reader

        try:
            names = list(find_sweeps(*open_reader()))
        except UserError:  # there is no store here
            names = []
    else:
        names = list(KINDS) if what == "kinds" else list(list_entries(what)) if what in KINDS else []
        names = [name for name in names if ":" not in name]  # `rounds_to:PERCENT` is a form, not a name
        if what == "metrics":
            from fedray.cells.metric import BY_ROUND, LAST

            names += [f"{LAST}{name}" for name in BY_ROUND]
    return [name for name in names if name.startswith(incomplete)]


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=" | ".join(KINDS),
            autocompletion=lambda incomplete: complete("kinds", incomplete),
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="show its page: formula, options, paper, cost; also `package.module:Class`",
            autocompletion=lambda ctx, incomplete: complete(ctx.params["what"], incomplete),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List everything you can choose from, or show an entry.

    Without a NAME each entry has one line; with it you see all about that entry.
    """
    if what not in KINDS:
        raise unknown("list", what, KINDS)
    if name is None:
        print(format_json(list_entries(what)) if as_json else format_overview(what))
        return
    entries = list_entries(what)
    if name not in entries and (what not in SECTIONS or ":" not in name):
        raise unknown(f"list {what}", name, entries, f"`fedray list {what}`")
    text = read_entry(what, name)
    if not as_json:
        print(text, end="")
        return
    told: dict[str, Any] = {"name": name, "text": text}
    if what in SECTIONS:
        from fedray.config import find_component

        told["schema"] = find_component(SECTIONS[what], name).model_json_schema()
    print(format_json(told))


def read_entry(what: str, name: str) -> str:
    """Return all about an entry: its page, or its file."""
    if what == "clusters":
        from fedray.sweep.file.shipped import list_cluster_files

        return next(file for file in list_cluster_files() if file.name == name).read_text(encoding="utf-8")
    if what == "sweeps":
        from fedray.sweep.file.shipped import get_sweeps_folder

        text = (get_sweeps_folder() / f"{name}.yaml").read_text(encoding="utf-8")
        return re.sub("^# yaml-language-server: .*\n", "", text)  # it names a file of the same folder
    return f"{format_page(what, name) if what in SECTIONS else f'{name}: {list_entries(what)[name]}'}\n"


def list_entries(what: str) -> dict[str, str]:
    """Return name -> description in one line."""
    if what == "metrics":
        from fedray.cells.metric import BY_ROUND, OF_RUN

        return (
            BY_ROUND
            | OF_RUN
            | {
                "rounds_to:PERCENT": "first evaluated round with that test accuracy",
                "rounds_to:METHOD": "first evaluated round with that method's best test accuracy, setting by setting",
                "speedup:TARGET/METHOD": "that method's rounds_to:TARGET divided by the run's own",
                "slowdown:TARGET/METHOD": "the run's own rounds_to:TARGET divided by that method's",
            }
        )
    if what == "clusters":
        from fedray.sweep.file.shipped import list_cluster_files

        return {
            file.name: next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# "))[2:]
            for file in list_cluster_files()
        }
    if what == "sweeps":
        from fedray.sweep.file.shipped import get_sweeps_folder, list_sweeps
        from fedray.sweep.file.sweep import Sweep

        files = {name: get_sweeps_folder() / f"{name}.yaml" for name in list_sweeps()}
        return {name: _describe(Sweep, file) for name, file in files.items()}
    from fedray.config import COMPONENTS

    registry: Mapping[str, Any] = COMPONENTS[SECTIONS[what]][0]
    entries = {name: getattr(kind, "idea", "") or kind.make_row()[1] for name, kind in sorted(registry.items())}
    if what == "algorithms":
        from fedray.components.plugins import list_form_options, list_variants

        entries |= {name: ", ".join(list_form_options(name.removesuffix(FORMS))) for name in sorted(list_variants())}
    return entries


def _describe(sweep: Any, file: Any) -> str:
    from fedray.sweep.file.document import load_document

    document = load_document(file)
    return sweep.parse(document, file=file).description if "base" in document else "one run, for `fedray run`"


def format_overview(what: str) -> str:
    """Format one line per entry; cut to the terminal's width, or to 100 characters in a pipe."""
    entries = list_entries(what)
    widest = max(map(len, entries)) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    rows = [f"{name:<{widest}}{text}".rstrip() for name, text in entries.items()]
    first = next((place for place, name in enumerate(entries) if name.endswith(FORMS)), len(rows))
    rows[first:first] = [] if first == len(rows) else ["", "Other forms of methods, with the options that they add:"]
    if what == "metrics":
        notes = (
            "With `last10_` before a name: mean of the tests in the last fifth of the rounds, at most 10 rounds.\n"
            "With `best_` (accuracies): the best round on the test set. Without either: the last round.\n"
            "evaluation.probes adds metrics of its own: probes of yours those of their `metrics`."
        )
        return "\n".join([*(_cut(row, width) for row in rows), "", notes])
    if what == "clusters":
        notes = "`fedray list clusters slurm.sh > slurm.sh` writes one."
        return "\n".join([*(_cut(row, width) for row in rows), "", notes])
    if what == "sweeps":
        rows += ["", "`fedray list sweeps NAME > NAME.yaml` writes one."]
    return "\n".join(_cut(row, width) for row in rows)


def _cut(row: str, width: int) -> str:
    return row if len(row) <= width else row[: width - 1].rstrip() + "…"


def format_page(what: str, name: str) -> str:
    """Format an entry: idea, source, definition, options; for a method also its cost."""
    from fedray.components.base import describe_allowed, format_value
    from fedray.config import find_component

    kind = find_component(SECTIONS[what], name)
    idea = getattr(kind, "idea", "")
    text = [f"{name}: {idea}" if idea else name, *([f"  {kind.paper}"] if kind.paper else [])]
    if kind.__doc__:
        text += ["", *(f"  {line}".rstrip() for line in inspect.cleandoc(kind.__doc__).splitlines())]
    if kind.model_fields:
        text += ["", "options:"]
    for option, field in kind.model_fields.items():
        given = "required" if field.is_required() else format_value(field.default)
        text.append(f"  {option} = {given}    ({describe_allowed(field).replace('`', '')})")
        text += [f"      {field.description}"] if field.description else []
    recipes = getattr(kind, "recipes", {})
    text += ["", "presets:"] if recipes else []
    for preset, recipe in recipes.items():
        numbers = ", ".join(f"{key}: {format_value(list(getattr(recipe, key)))}" for key in ("mean", "std"))
        augment = ", ".join(format_value(one.model_dump(exclude_none=True)) for one in recipe.augment)
        text.append(f"  {preset}: {{{numbers}, augment: [{augment}]{', channels: 3' * (recipe.channels == 3)}}}")
    if what == "models" and getattr(kind, "published", None) is not None:
        from fedray.models.base import count_parameters

        spec: Any = kind
        shape, classes, _ = spec.published
        trained, every = count_parameters(spec.parse("model", {}), shape, classes)
        size = "x".join(map(str, shape))
        text += ["", f"trained {trained:,} of {every:,} parameters, for {size} and {classes} classes; "]
        text[-1] += "freeze and lora train fewer"
    if what == "algorithms" and not kind.list_required():
        from fedray.algorithms import algorithm
        from fedray.engine.cost import measure_cost

        text += ["", f"cost, in multiples of the model: {measure_cost(algorithm(name))}"]
    return "\n".join(text)


def schema() -> None:
    """Print the JSON schema of sweep files and runs.

    `fedray schema > sweep.schema.json` writes it for editors.
    """
    from fedray.components.plugins import list_variants
    from fedray.config import COMPONENTS, PLAIN
    from fedray.probes.registry import PROBES
    from fedray.sweep.file.space import DISTRIBUTIONS, Searcher
    from fedray.sweep.file.sweep import SELECT, STOPS, Scheduler, Sweep

    definitions: dict[str, Any] = {}
    for name, section in PLAIN.items():
        definitions[name] = _describe_section(section, definitions)
    run: dict[str, Any] = {"seed": {"type": "integer", "minimum": 0}}
    run |= {name: {"$ref": f"#/$defs/{name}"} for name in (*PLAIN, *COMPONENTS)}
    keys: dict[str, Any] = {name: {"type": "array", "items": what} for name, what in run.items()}
    for name in PLAIN:
        for option, what in definitions[name]["properties"].items():
            items = {"$ref": f"#/$defs/{name}/properties/{option}"}
            keys[f"{name}.{option}"] = {"type": "array", "description": what.get("description", option), "items": items}
    rules: list[dict[str, Any]] = []
    for name, (known, *_) in COMPONENTS.items():
        registry = {**known, **list_variants()} if name == "algorithm" else known
        needing: dict[str, list[str]] = {}
        for word, kind in registry.items():
            definitions[f"{name}.{word}"] = found = _describe_section(kind, definitions)
            for option, what in found["properties"].items():
                said = what.get("description", option)
                key = keys.setdefault(f"{name}.{option}", {"description": "", "type": "array", "items": {"anyOf": []}})
                key["description"] += f"{word}: {said}\n"
                value = {key: what[key] for key in what if key not in ("description", "default", "title", "paper")}
                key["items"]["anyOf"] += [] if value in key["items"]["anyOf"] else [value]
                number = key["items"]["anyOf"].index(value)
                value = {"$ref": f"#/$defs/grid/properties/{name}.{option}/items/anyOf/{number}"}
                either = [value, {"type": "array", "items": value}]  # a grid's entry may hold a list
                found["properties"][option] = {"description": said, "anyOf": either}
            found["properties"]["name"] = True
            if "required" in found:  # a grid may have it
                needing[word] = found.pop("required")
        named = {"anyOf": [{"enum": sorted(registry)}, OWN_CLASS]}
        options = [{"if": _choose({"const": word}), "then": {"$ref": f"#/$defs/{name}.{word}"}} for word in registry]
        definitions[name] = {"anyOf": [*named["anyOf"], _choose(named) | {"allOf": options}]}
        rules.append(_limit_keys(name, {word: [*definitions[f"{name}.{word}"]["properties"]] for word in registry}))
        if needing:
            definitions[f"whole_{name}"] = _require_options(needing)
            rules.append(_forbid_halves(name))
    sweep = Sweep.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= sweep.pop("$defs", {})
    base = {"type": "object", "properties": run, "additionalProperties": False}
    sweep["properties"]["base"] = base | {"patternProperties": {r"\.": True}}  # of a file that extends another
    deeper = {rf"^({'|'.join(COMPONENTS)})\.|^({'|'.join(PLAIN)})\.\w+\.": True}  # see _limit_keys
    names = {"properties": dict.fromkeys(keys, True), "patternProperties": deeper, "additionalProperties": False}
    pair = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}}
    values = {name: pair for name in DISTRIBUTIONS} | {"choice": {"type": "array", "minItems": 1}}
    definitions["drawn"] = {"type": "object", "minProperties": 1, "maxProperties": 1} | {
        "properties": values,
        "additionalProperties": False,
    }
    held: dict[str, Any] = {
        part: {key: {"$ref": "#/$defs/drawn"} for key in known}
        for part, known in (("properties", keys), ("patternProperties", deeper))
    }
    sweep["properties"]["search"] = {"type": "object"} | names | held
    definitions["grid"] = {"type": "object"} | names | {"properties": {k: v | {"minItems": 1} for k, v in keys.items()}}
    definitions["Probe"] = {"anyOf": [{"enum": sorted(PROBES)}, OWN_CLASS, {"type": "object", "required": ["name"]}]}
    sweep["properties"]["grid"] = {"$ref": "#/$defs/grid"}
    sweep["properties"] |= {
        "cases": True,
        "smoke": True,
        "searcher": _name_or_whole(Searcher),
        "scheduler": {"anyOf": [_name_or_whole(Scheduler), {"type": "null"}]},
        "select": {"enum": SELECT},
        "stop": {"type": "object", "propertyNames": {"enum": STOPS}, "additionalProperties": {"exclusiveMinimum": 0}},
        "extends": {"type": "string"},
    }
    sweep["required"] = ["name"]  # `base` may be that of the file that this one extends
    sweep["allOf"] = rules
    sections = {name: {"$ref": f"#/$defs/whole_{name}"} for name in COMPONENTS if f"whole_{name}" in definitions}
    alone = base | {"required": [*COMPONENTS], "allOf": [{"properties": sections}]}
    page = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "fedray", "$defs": definitions}
    print(json.dumps(page | {"if": {"required": ["name"]}, "then": sweep, "else": alone}, ensure_ascii=False))


def _require_options(needing: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the schema that refuses a section without the options that its name requires."""
    named = [{"if": _choose({"const": word}), "then": {"required": options}} for word, options in needing.items()]
    return {"not": {"enum": list(needing)}, "allOf": named}


def _name_or_whole(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a section of a sweep that its name alone may stand for."""
    whole = kind.model_json_schema()
    return {"anyOf": [whole["properties"]["name"], whole]}


def _choose(name: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a section that names what it chooses."""
    return {"type": "object", "required": ["name"], "properties": {"name": name}}


def _limit_keys(section: str, options: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the rule that dotted keys are options of what the sweep names; any are of a class of one's own."""

    def limit(valid: Iterable[str]) -> dict[str, Any]:
        names = {"propertyNames": {"pattern": rf"^(?!{section}\.)|^{section}\.({'|'.join(valid)})(\.|$)"}}
        return {"properties": {"grid": names, "search": names}}

    def has(part: str, what: Any) -> dict[str, Any]:
        return {"required": [part], "properties": {part: {"required": [section], "properties": {section: what}}}}

    either = {"anyOf": [OWN_CLASS, _choose(OWN_CLASS)]}
    elsewhere = [{"required": ["cases"]}, {"required": ["extends"]}]
    own_class = [has("base", either), has("grid", {"contains": either})]
    one = [
        {"if": has("base", {"anyOf": [{"const": word}, _choose({"const": word})]}), "then": limit(valid)}
        for word, valid in options.items()
    ]
    return {
        "if": {"not": {"anyOf": [*elsewhere, *own_class]}},
        "then": limit(sorted(set().union(*options.values())))
        | {"if": {"not": has("grid", True)}, "then": {"allOf": one}},
    }


def _forbid_halves(section: str) -> dict[str, Any]:
    """Return the rule of a sweep whose base and grid hold the section whole, unless another key may complete it."""

    def has_key(pattern: str) -> dict[str, Any]:
        grid = {"not": {"propertyNames": {"not": {"pattern": pattern}}}}
        return {"required": ["grid"], "properties": {"grid": grid}}

    whole = {"$ref": f"#/$defs/whole_{section}"}
    elsewhere = [{"required": [key]} for key in ("cases", "search", "extends")]
    return {
        "if": {"not": {"anyOf": [*elsewhere, has_key(rf"^{section}\.")]}},
        "then": {
            "properties": {"grid": {"properties": {section: {"items": whole}}}},
            "if": {"not": has_key(f"^{section}$")},
            "then": {"properties": {"base": {"properties": {section: whole}}}},
        },
    }


def _describe_section(kind: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section, whose own definitions are added to the others."""
    found = kind.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= {name: what if what["properties"] else True for name, what in found.pop("$defs", {}).items()}
    return found
