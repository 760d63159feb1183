"""`fedray list`: what you can choose from, one line each, or an entry's page; `fedray schema`: keys, for editors."""

import inspect
import json
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from fedray.common.entry import Json, format_json
from fedray.common.errors import FORMS, LISTS, UserError, unknown

SECTIONS = {listed: section for section, listed in LISTS.items()}
"""Listed kind -> the section of a configuration that chooses it."""
KINDS = (*SECTIONS, "metrics", "sweeps", "clusters")
NOTES = {
    "metrics": "With `last10_` before a name: mean of the tests in the last fifth of the rounds, at most 10 rounds.\n"
    "With `best_` (accuracies, macro F1, AUC): the best round on held-out samples, without any on the test set.\n"
    "Without either: the last round.\n"
    "evaluation.probes adds metrics of its own: probes of yours those of their `metrics`.\n"
    "`fedray run --profile` adds profile_PART_seconds.",
    "clusters": "`fedray list clusters slurm.sh > slurm.sh` writes one.",
    "sweeps": "`fedray list sweeps NAME > NAME.yaml` writes one.",
}
"""Listed kind -> what follows its overview."""
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
            metavar="KIND", help=" | ".join(KINDS), autocompletion=lambda incomplete: complete("kinds", incomplete)
        ),
    ] = "",
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
    if not what:
        raise UserError(f"list: one of these is required: {', '.join(KINDS)}")
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
        from fedray.sweep.document import list_cluster_files

        return next(file for file in list_cluster_files() if file.name == name).read_text(encoding="utf-8")
    if what == "sweeps":
        from fedray.sweep.document import get_sweeps_folder

        text = (get_sweeps_folder() / f"{name}.yaml").read_text(encoding="utf-8")
        return re.sub("^# yaml-language-server: .*\n", "", text)  # it names a file of the same folder
    return f"{format_page(what, name) if what in SECTIONS else f'{name}: {list_entries(what)[name]}'}\n"


def list_entries(what: str) -> dict[str, str]:
    """Return name -> description in one line."""
    if what == "metrics":
        from fedray.cells.metric import BY_TARGET, KNOWN

        return {name: known.title for name, known in KNOWN.items() if name != "seconds"} | BY_TARGET
    if what == "clusters":
        from fedray.sweep.document import list_cluster_files

        return {
            file.name: next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# "))[2:]
            for file in list_cluster_files()
        }
    if what == "sweeps":
        from fedray.sweep.document import get_sweeps_folder, list_sweeps, load_document
        from fedray.sweep.sweep import Sweep

        documents = {name: load_document(get_sweeps_folder() / f"{name}.yaml") for name in list_sweeps()}
        return {
            name: Sweep.parse(document).description if "base" in document else "one run, for `fedray run`"
            for name, document in documents.items()
        }
    from fedray.config import COMPONENTS

    registry: Mapping[str, Any] = COMPONENTS[SECTIONS[what]][0]
    entries = {name: getattr(kind, "idea", "") or kind.make_row()[1] for name, kind in sorted(registry.items())}
    if what == "algorithms":
        from fedray.components.plugins import list_form_options, list_variants

        entries |= {name: ", ".join(list_form_options(name.removesuffix(FORMS))) for name in sorted(list_variants())}
    return entries


def format_overview(what: str) -> str:
    """Format one line per entry, cut to the width of a terminal."""
    entries = list_entries(what)
    widest = max(map(len, entries)) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    rows = [f"{name:<{widest}}{text}".rstrip() for name, text in entries.items()]
    first = next((place for place, name in enumerate(entries) if name.endswith(FORMS)), len(rows))
    rows[first:first] = [] if first == len(rows) else ["", "Other forms of methods, with the options that they add:"]
    rows = [row if len(row) <= width else f"{row[: width - 1].rstrip()}…" for row in rows]
    return "\n".join([*rows, *(["", NOTES[what]] if what in NOTES else [])])


def format_page(what: str, name: str) -> str:
    """Format an entry: idea, source, definition, options; for a method also its cost."""
    from fedray.components.base import describe_allowed, format_value
    from fedray.config import find_component

    kind = find_component(SECTIONS[what], name)
    idea = getattr(kind, "idea", "")
    text = [f"{name}: {idea}" if idea else name, *([f"  {kind.paper}"] if kind.paper else [])]
    if kind.__doc__:
        text += ["", *(f"  {line}".rstrip() for line in inspect.cleandoc(kind.__doc__).splitlines())]
    module = getattr(kind, "module_class", None)  # of a model of one's own
    if kind.model_fields:
        text += ["", "options:"]
    for one in inspect.signature(module).parameters.values() if module else ():
        if one.name not in ("input_shape", "num_classes") and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            text.append(f"  {one.name} = {'required' if one.default is one.empty else format_value(one.default)}")
    own = kind.__annotations__  # first: what it adds to its parents' options
    for option, field in sorted(kind.model_fields.items(), key=lambda item: item[0] not in own):
        given = "required" if field.is_required() else format_value(field.default)
        text.append(f"  {field.alias or option} = {given}    ({describe_allowed(field).replace('`', '')})")
        text += [f"      {field.description}"] if field.description else []
    recipes = getattr(kind, "recipes", {})
    text += ["", "presets:"] if recipes else []
    for preset, recipe in recipes.items():
        numbers = ", ".join(f"{key}: {format_value(list(getattr(recipe, key)))}" for key in ("mean", "std"))
        augment = ", ".join(format_value(one.model_dump(exclude_none=True)) for one in recipe.augment)
        text.append(f"  {preset}: {{{numbers}, augment: [{augment}]{', channels: 3' * (recipe.channels == 3)}}}")
    if what == "models":
        text += _describe_size(kind)
    if what == "algorithms" and not kind.list_required():
        from fedray.algorithms import algorithm
        from fedray.engine.cost import measure_cost

        text += ["", f"cost, in multiples of the model: {measure_cost(algorithm(name))}"]
    return "\n".join(text)


def _describe_size(kind: Any) -> list[str]:
    """Return lines with a model's number of parameters; none for one that cannot be built from its defaults alone."""
    from fedray.models.base import count_parameters

    if kind.published is None and not hasattr(kind, "module_class"):
        return []
    shape, classes = kind.published[:2] if kind.published else ((3, 32, 32), 10)
    try:
        trained, every = count_parameters(kind.parse("model", {}), shape, classes)
    except UserError:
        return []
    size = "x".join(map(str, shape))
    return [
        "",
        f"trained {trained:,} of {every:,} parameters, for {size} and {classes} classes; freeze and lora train fewer",
    ]


def schema() -> None:
    """Print the JSON schema of sweep files and runs.

    `fedray schema > sweep.schema.json` writes it for editors.
    """
    from fedray.components.plugins import list_variants
    from fedray.config import COMPONENTS, PLAIN
    from fedray.probes import PROBES
    from fedray.sweep.space import DISTRIBUTIONS
    from fedray.sweep.sweep import SELECT, STOPS, Sweep

    definitions: dict[str, Any] = {}
    for name, section in PLAIN.items():
        definitions[name] = _describe_section(section, definitions)
    options = {name: [*definitions[name]["properties"]] for name in PLAIN}
    for name, (known, *_) in COMPONENTS.items():
        registry = {**known, **list_variants()} if name == "algorithm" else known
        words: dict[str, list[str]] = {}  # those with the same options share an entry
        for word, kind in registry.items():
            words.setdefault(json.dumps(_describe_section(kind, definitions)), []).append(word)
        kinds = [json.loads(text) for text in words]
        for kind, names in zip(kinds, words.values(), strict=True):
            kind["properties"] = {"name": {"enum": names}} | kind.get("properties", {})
        own = {"type": "object", "required": ["name"], "properties": {"name": OWN_CLASS}}
        definitions[name] = {"anyOf": [{"enum": sorted(registry)}, OWN_CLASS, own, *kinds]}
    definitions["Probe"] = {"anyOf": [{"enum": sorted(PROBES)}, OWN_CLASS, {"type": "object", "required": ["name"]}]}
    sections = {name: {"$ref": f"#/$defs/{name}"} for name in (*PLAIN, *COMPONENTS)}
    run = {"properties": {"seed": {"type": "integer", "minimum": 0}} | sections, "additionalProperties": False}
    plain = "|".join(rf"{name}(\.({'|'.join(keys)})(\..+)?)?" for name, keys in options.items())
    keys = {"type": "object", "propertyNames": {"pattern": rf"^(seed|{plain}|({'|'.join(COMPONENTS)})(\..+)?)$"}}
    values = {kind: {"type": "array", "minItems": 1 if kind == "choice" else 2} for kind in DISTRIBUTIONS}
    drawn = {"type": "object", "minProperties": 1, "maxProperties": 1, "properties": values}
    sweep = _describe_section(Sweep, definitions)
    sweep["properties"] |= {
        "extends": {"type": "string"},
        "base": run | {"patternProperties": {r"\.": True}},  # of a file that extends another
        "grid": keys | {"additionalProperties": {"type": "array", "minItems": 1}},
        "search": keys | {"additionalProperties": drawn | {"additionalProperties": False}},
        "cases": True,
        "smoke": True,
        "changes": True,
        "select": {"enum": SELECT},
        "stop": {"type": "object", "propertyNames": {"enum": STOPS}},
    }
    for name, kind in (("searcher", "Searcher"), ("scheduler", "Scheduler")):
        names = definitions[kind]["properties"]["name"]
        sweep["properties"][name] = {"anyOf": [names, {"$ref": f"#/$defs/{kind}"}, {"type": "null"}]}
    sweep["required"] = ["name"]  # `base` may be that of the file that this one extends
    page = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "fedray", "$defs": definitions}
    page |= {"if": {"required": ["name"]}, "then": sweep, "else": run | {"required": [*COMPONENTS]}}
    print(json.dumps(page, ensure_ascii=False, separators=(",", ":")))


def _describe_section(kind: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section; its own definitions are added to the others."""
    found: dict[str, Any] = _strip(kind.model_json_schema(ref_template="#/$defs/{model}"))
    definitions |= found.pop("$defs", {})
    found.pop("description", "")  # a method's page
    return found


def _strip(found: Any) -> Any:
    """Return a schema without what editors do not need: titles, defaults, papers."""
    if isinstance(found, list):
        return [_strip(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {
        key: {name: _strip(one) for name, one in value.items()} if key in ("properties", "$defs") else _strip(value)
        for key, value in found.items()
        if key not in ("title", "default", "paper")
    }
