"""From a section of a configuration to its component: by name, by `package.module:Class`, or a class itself.

A class of your own is found the same way for algorithms, models, partitions, data sets and probes. Its module is
searched for like any other, and finally in the working directory, which is searched only if such a class is named.
"""

import contextlib
import importlib
import inspect
import json
import os
import re
import sys
import traceback
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from fedray.common.calls import check_return, fits, format_hint
from fedray.common.errors import (
    FORMS,
    LISTS,
    MANY,
    Diverged,
    PluginError,
    UserError,
    find_nearest,
    join_lines,
    truncate_repr,
    unknown,
)
from fedray.common.rng import key_draws
from fedray.components.base import Component
from fedray.components.identity import make_entry
from fedray.components.sources import digest_source, is_loaded_otherwise, read_source

VARIANTS = "fedray.papers.variants"
"""Module of the methods' other forms, which are called METHOD@forms; imported only if one is named."""
_appended: dict[str, set[str]] = {}
"""The working directory, if `load_class` has put it on Python's path, and the modules that it has loaded from there."""
C = TypeVar("C", bound=Component)


def resolve(
    section: str,
    value: Any,
    registry: Mapping[str, type[C]],
    base: type[C] | None = None,
    adapt: Callable[[type, str], type[C]] | None = None,
) -> C:
    """Return the component that a section of a configuration chooses.

    The value is a name of the registry, `package.module:Class`, a class, a mapping with one of these as `name` and the
    options next to it, or a component. A user's own class must have the base class (None: the section accepts none);
    `adapt` turns another class, given with its path, into a component (an nn.Module into a model). Raises UserError if
    a name or an option is unknown (the nearest valid one is named), or the class cannot serve.
    """
    if isinstance(value, Component):
        known = [*registry.values(), *(list_variants().values() if value.name.endswith(FORMS) else ())]
        own = base is not None and ":" not in value.name and type(value) not in known
        value = {"name": type(value), **{k: getattr(value, k) for k in type(value).model_fields}} if own else value
    if isinstance(value, Component):
        return value  # type: ignore[return-value]
    if isinstance(value, str | type):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str | type):
        told = f"valid names: {', '.join(sorted(registry))}"
        if section in LISTS and len(registry) > MANY:
            told = f"`fedray list {LISTS[section]}` has the names"
        if isinstance(value, Mapping) and "name" not in value:
            given = ", ".join(f"{section}.{key}" for key in value) or "nothing"
            raise UserError(f"{section}.name is required: found {given} without it; {told}")
        raise UserError(f"{section}: expected a name or a mapping with `name`, got {truncate_repr(value)}; {told}")
    kind = find_class(section, value["name"], registry, base, adapt)
    options = {k: v for k, v in value.items() if k != "name"}
    if ":" not in kind.name:
        return kind.parse(section, options, registry)
    with key_draws(True, 0, "options"):  # of private attributes
        return kind.parse(section, options, registry)


def list_variants() -> Mapping[str, type[Any]]:
    """Return name -> class of the other forms of methods."""
    variants: Mapping[str, type[Any]] = importlib.import_module(VARIANTS).VARIANTS
    return variants


def list_form_options(name: str) -> dict[str, Any]:
    """Return the options that a method's other forms add, with their defaults."""
    forms = list_variants().get(f"{name}{FORMS}")
    if forms is None:
        return {}
    method: Any = next(kind for kind in forms.__mro__ if vars(kind).get("name") == name)
    return {key: field.default for key, field in forms.model_fields.items() if key not in method.model_fields}


def find_class(
    section: str,
    name: str | type,
    registry: Mapping[str, type[C]],
    base: type[C] | None = None,
    adapt: Callable[[type, str], type[C]] | None = None,
) -> type[C]:
    """Return the class that a section names; see `resolve`. Raises UserError if the name is unknown or cannot serve."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    if isinstance(name, str) and name.endswith(FORMS) and (method := registry.get(name.removesuffix(FORMS))):
        forms = list_variants().get(name)
        if forms is not None and issubclass(forms, method):
            return forms
    if base is None or (isinstance(name, str) and ":" not in name):
        listing = f"`fedray list {LISTS[section]}`" if section in LISTS else ""
        raise UserError(f"{unknown(_get_key(section), str(name), registry, listing)}{getattr(base, 'hint', '')}")
    path = name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"
    kind = load_class(section, path) if isinstance(name, str) else name
    own = vars(kind).get("name")
    if isinstance(own, str) and own in registry and issubclass(kind, base):
        raise UserError(f"{_get_key(section)}: {path} has name = {own!r}, which is one of fedray's; choose another one")
    return _with_name(section, path, kind, base, adapt)


def _get_key(section: str) -> str:
    """Return the key of the name; a list of names (probes) has none."""
    return section if section == "evaluation.probes" else f"{section}.name"


@cache
def _with_name(
    section: str, path: str, found: type, base: type[C], adapt: Callable[[type, str], type[C]] | None
) -> type[C]:
    """Return the class under the name by which a configuration finds it again, in a process that unpickles it, too.

    It knows the digest of its source, as it was when this process first named it, unless it had loaded older code.
    """
    source = ""
    with contextlib.suppress(UserError):  # a notebook's class has no source; a cell refuses it
        source = digest_source(section, path)
        source = "of older code" if is_loaded_otherwise(path) else source
    if issubclass(found, base):
        _refuse_slips(section, path, found, base)
        _refuse_declarations(section, path, found, base)
        own_name = vars(found).get("name")
        members = {"name": path, "own_name": own_name or "", "__module__": found.__module__, "__doc__": found.__doc__}
        if section == "algorithm":  # what other classes return is checked where it is used
            checked: dict[str, Any] = {"stacks": vars(found).get("stacks", False)}
            for name in dir(base):
                hook, given = inspect.getattr_static(found, name), inspect.getattr_static(base, name)
                is_own = hook is not given and inspect.isfunction(hook) and inspect.isfunction(given)
                if is_own and name[0] != "_" and not hook.__module__.startswith("fedray."):
                    hint = get_type_hints(given).get("return", Any)
                    checked[name] = check_return(f"algorithm: {path}.{name}", hook, hint)
            members |= checked
        kind: type[C] = type(found.__name__, (found,), members)
    elif adapt is not None:
        kind = adapt(found, path)
    else:
        raise UserError(f"{_get_key(section)}: {path} is not a subclass of {base.__module__}.{base.__name__}")

    def reduce(self: Component, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (section, path, base, adapt, source, self.__getstate__())

    kind.source = source
    kind.__reduce_ex__ = reduce  # type: ignore[assignment,method-assign]
    return kind


def _rebuild(
    section: str,
    path: str,
    base: type[C],
    adapt: Callable[[type, str], type[C]] | None,
    source: str,
    state: dict[Any, Any],
) -> C:
    """Return a pickled component of a user's own class.

    Raises UserError if the class cannot be imported here, or has another source than where it was pickled.
    """
    kind = _with_name(section, path, load_class(section, path), base, adapt)
    if kind.source != source:
        raise UserError(
            f"{_get_key(section)}: {path}, or a module that it imports, is not what it was in the process that sent "
            "it here: it has changed meanwhile, or this machine has another copy; start the call again"
        )
    component: C = object.__new__(kind)
    component.__setstate__(state)
    return component


def _refuse_slips(section: str, path: str, found: type[Component], base: type[Component]) -> None:
    """Refuse a constructor, and a method that is no hook: one whose name resembles a hook's, or is nowhere else in its
    module, so that nothing would call it."""
    ours = next(kind for kind in found.__mro__ if kind.__module__.startswith("fedray.") or kind is base)
    hooks = [name for name in dir(ours) if callable(getattr(ours, name)) and not hasattr(Component, name)]
    kinds = found.__mro__[: found.__mro__.index(ours)]
    for kind in kinds:
        if "__init__" in vars(kind):
            raise UserError(
                f"{_get_key(section)}: {path} defines __init__; declare its options as fields instead, "
                "for example `strength: float = 1.0`"
            )
        for name, member in vars(kind).items():
            if not inspect.isfunction(member) or name.startswith("_") or hasattr(ours, name):
                continue
            near = find_nearest(name, hooks, 0.8)
            if near or _is_alone(name, kinds):
                what = "which nothing calls; it is no hook (docs/plug-ins.md lists them)"
                what = f"which is no hook; did you mean {near!r}? Rename it" if near else what
                raise UserError(
                    f"{_get_key(section)}: {path} defines {name}, {what}; if it is a helper of yours, call it _{name}"
                )


def _is_alone(name: str, kinds: Sequence[type]) -> bool:
    """Return True if a name stands once in the modules that define some classes; False if a text is not known."""
    try:
        texts = [read_source(sys.modules[module]) for module in {kind.__module__ for kind in kinds}]
        return sum(len(re.findall(rf"\b{name}\b", text)) for text in texts) == 1
    except (OSError, TypeError, KeyError):
        return False


def _refuse_declarations(section: str, path: str, found: type[Component], base: type[Component]) -> None:
    """Refuse a declaration of the base class (`shares = "body"`) to which the user's class gives another type, and an
    option with the name of a hook."""
    for name, field in found.model_fields.items():
        if isinstance(hook := getattr(base, name, None), property) or callable(hook):
            raise UserError(f"{_get_key(section)}: {path} has an option {name}, which is a hook; choose another name")
        try:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            json.dumps(make_entry(default), allow_nan=False)
        except (TypeError, ValueError):
            raise UserError(f"{_get_key(section)}: {path}: no file can hold the default of its option {name}") from None
    for name in dir(base):
        given, hook = inspect.getattr_static(base, name), inspect.getattr_static(found, name)
        if isinstance(given, property) and inspect.isfunction(hook):
            raise UserError(f"{_get_key(section)}: {path}.{name} is read as a property; write @property above it")
    ours = [kind.__annotations__ for kind in base.__mro__ if kind.__module__.startswith("fedray.")]
    for name, hint in ChainMap(*ours).items():
        kind: Any = get_origin(hint)
        if kind is not ClassVar:
            continue
        if name in found.model_fields:
            raise UserError(
                f"{_get_key(section)}: {path} makes {name} an option by its type, and nothing would read it; write "
                f"{name} = ... without one"
            )
        value, (wanted,) = inspect.getattr_static(found, name), get_args(hint)
        if not isinstance(value, property) and not fits(value, wanted):
            declared = f"{path} declares {name} = {truncate_repr(value)}"
            raise UserError(f"{_get_key(section)}: {declared}; {format_hint(wanted)} is required")


def load_class(section: str, path: str) -> type:
    """Import `package.module:Class`; the working directory is searched last, and that of an earlier call no longer.

    This runs the code of the module, so call it only for what the user starts, never for the contents of a checkpoint
    or a store. Raises UserError if it cannot be imported, or is not a class.
    """
    folder = os.getcwd()
    for earlier in _appended.keys() - {folder}:
        with contextlib.suppress(ValueError):
            sys.path.remove(earlier)
        for found in _appended.pop(earlier):
            sys.modules.pop(found, None)
    if folder not in sys.path:
        sys.path.append(folder)
        _appended[folder] = set()
    module, _, name = path.partition(":")
    before = {*sys.modules}
    try:
        holder = importlib.import_module(module)
        kind = getattr(holder, name)
    except (Exception, SystemExit) as error:  # a user's module can raise anything
        reason = join_lines(error)
        if module.endswith(".py") and isinstance(error, ModuleNotFoundError | TypeError):
            reason = f"write '{module.removesuffix('.py').replace('/', '.')}:{name}', without .py"
        elif isinstance(error, ModuleNotFoundError) and error.name == module:
            reason += f" in {folder} or among the installed packages; call fedray where {module}.py is"
        raise UserError(f"{_get_key(section)}: {path!r} cannot be imported: {reason}") from None
    finally:
        for new in (sys.modules.keys() - before) if folder in _appended else ():
            file = getattr(sys.modules[new], "__file__", None) or ""
            if file.startswith(os.path.join(folder, new.partition(".")[0])) and not new.startswith("fedray."):
                _appended[folder].add(new)
    if not inspect.isclass(kind):
        raise UserError(f"{_get_key(section)}: {path!r} is not a class")
    return kind


def refuse_unreachable(component: Component) -> None:
    """Refuse a class that another process cannot import, before Ray starts. Raises UserError."""
    module, colon, name = component.name.partition(":")
    if colon and (module == "__main__" or "<locals>" in name):
        raise UserError(
            f"{_get_key(component.section)}: Ray's workers cannot import {component.name}; "
            "put the class in a .py file, or set runtime.backend: inline"
        )


def _describe_error(component: Component, error: BaseException) -> str:
    """Say what an exception of a user's own class is; that it sets an attribute of itself, in our words."""
    first = (
        error.errors()[0] if isinstance(error, ValidationError) and error.title == type(component).__name__ else None
    )
    if first is None or first["type"] != "frozen_instance":
        return f"raises {join_lines(error)}"
    name = first["loc"][0]
    kept = f"; what stays is c.state.{name}, if client_state begins it, or server.state.{name}, if server_state does"
    return f"sets self.{name}, and its attributes stay as they are{kept * (component.section == 'algorithm')}"


@contextlib.contextmanager
def blame(*components: Component) -> Iterator[None]:
    """Turn an exception of a user's own class within a block into a PluginError; other errors pass unchanged.

    The error names the one of the run's components whose module is innermost in the traceback; of several in one module
    the one whose class it is.
    """
    try:
        yield
    except (UserError, Diverged):
        raise
    except (Exception, SystemExit) as error:
        files = defaultdict[Any, list[Component]](list)
        for one in (one for one in components if ":" in one.name):
            files[getattr(sys.modules.get(one.name.partition(":")[0]), "__file__", None)].append(one)
        for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
            code = frame.f_code
            if of_file := files.get(code.co_filename):
                owner = code.co_qualname.partition(".")[0]
                component = next((one for one in of_file if one.name.endswith(f":{owner}")), of_file[-1])
                place = f"{Path(code.co_filename).name}:{line} in {code.co_name}"
                said = f"{component.section}: {component.name} {_describe_error(component, error)} ({place})"
                raise PluginError(said, "".join(traceback.format_exception(error))) from error
        raise
