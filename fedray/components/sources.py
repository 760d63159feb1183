"""The source of a user's class: the module that defines it, and the modules of its folder that this imports.

A call runs the code that it began with, even if you edit it meanwhile: it reads each file once (`hold_sources`), and
its other processes import what it has read (`take_sources`), also on machines without these files.
"""

import ast
import contextlib
import hashlib
import importlib
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, SourceFileLoader, all_suffixes
from importlib.util import decode_source, resolve_name, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from fedray.common.errors import UserError
from fedray.common.whole_files import read_file
from fedray.common.yaml_files import LARGEST

Sources = Mapping[str, bytes | None]
"""File -> its content; None for a file that did not exist."""

_held: dict[str, bytes | None] | None = None
"""The files that a call has read; None outside of a call."""


class _HeldLoader(SourceFileLoader):
    """Runs the source that a call holds, and shows it to what asks for it, as `torch.jit` and tracebacks do."""

    def __init__(self, name: str, file: str, source: bytes) -> None:
        super().__init__(name, file)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        lines = decode_source(self._source).splitlines(keepends=True)
        linecache.cache[self.path] = len(self._source), None, lines, self.path
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


class _HeldFinder:
    """Finds modules where Python does, or else among the files that a call holds, and gives them their held source."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        tail = name.rpartition(".")[2]
        ends = (f"/{tail}/__init__.py", f"/{tail}.py")
        read = dict(_held or {})  # at once: another thread may be reading more
        held = {file: source for file, source in read.items() if file.endswith(ends)}
        if not any(source is not None for source in held.values()):
            return None
        others = (finder for finder in sys.meta_path if finder is not _HeldFinder)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        file = "" if spec is None or spec.loader is None else str(spec.origin)
        if not file or (file in held and held[file] is None):  # it was elsewhere, or it is gone
            places = (str(Path(folder).absolute()) + end for folder in (path or sys.path) for end in ends)
            file = next((place for place in places if held.get(place) is not None), file)
        if (source := held.get(file)) is None:
            return spec
        return spec_from_file_location(name, file, loader=_HeldLoader(name, file, source))


@contextlib.contextmanager
def hold_sources() -> Iterator[None]:
    """Read each source once within a block, a call of the user's; a call within another one is a part of it."""
    global _held
    if _held is not None:
        yield
        return
    _held = {}
    sys.meta_path.insert(0, _HeldFinder)
    try:
        yield
    finally:
        _held = None
        sys.meta_path.remove(_HeldFinder)


def list_held(paths: Iterable[tuple[str, str]] = ()) -> Sources:
    """Return what a call has read; with the sources of these classes, each a section and `package.module:Class`."""
    for section, path in paths:
        with contextlib.suppress(UserError):  # a run that needs the digest has been refused
            digest_source(section, path)
    return dict(_held or {})


def take_sources(sources: Sources) -> None:
    """Import from now on what the process that began the call has read; what is loaded already stays as it is."""
    global _held
    if not sources:  # no class of the user's own
        return
    loaders = {getattr(one, "__file__", None): getattr(one, "__loader__", None) for one in [*sys.modules.values()]}
    _held = {file: one for file, one in sources.items() if isinstance(loaders.get(file), _HeldLoader | None)}
    if _HeldFinder not in sys.meta_path:
        sys.meta_path.insert(0, _HeldFinder)


def digest_source(section: str, path: str) -> str:
    """Return the SHA-256 of the source of the module that defines `package.module:Class`, and of the modules of its
    folder that it imports, directly or not.

    The folder is the one that holds the module, or its package. Of a folder of installed packages only those of its own
    package count. `import` statements are followed, wherever in a file they are. Raises UserError if the source cannot
    be read, or the class is made in a function, from values that no source tells: no cell could tell when it changes.
    """
    if "<locals>" in path:
        raise UserError(
            f"{section}.name: {path} is defined in a function, so a cell cannot tell it from another one made there; "
            "define it in a module, with what varies as options"
        )
    try:
        module = importlib.import_module(path.partition(":")[0])
        return _hash_with_imports(module)
    except (ImportError, OSError, TypeError, SyntaxError, UnicodeError):  # a notebook, the prompt, no .py file
        raise UserError(
            f"{section}.name: the source of {path} cannot be read, so a cell cannot tell when it changes; "
            "put the class in a .py file"
        ) from None


def read_source(module: ModuleType) -> str:
    """Return a module's source, as its call holds it. Raises OSError or TypeError if there is none."""
    file = inspect.getsourcefile(module)
    content = _read(Path(file).absolute()) if file else None
    if content is None:
        raise OSError(f"{module.__name__} has no source")
    source = decode_source(content)
    return source if source.endswith("\n") else f"{source}\n"


def _read(file: Path) -> bytes | None:
    """Return a file's content, that of the first time within a call; None if it does not exist."""
    if _held is not None and str(file) in _held:
        return _held[str(file)]
    content = read_file(file, LARGEST) if file.is_file() else None
    if _held is not None and file.suffix == ".py":
        _held[str(file)] = content
    return content


def _hash_with_imports(module: ModuleType) -> str:
    name, source, file = module.__name__, read_source(module), Path(inspect.getfile(module)).absolute()
    package = name.rpartition(".")[0] if file.stem != "__init__" else name
    root = file.parents[package.count(".") + 1 if package else 0]
    top = name.partition(".")[0]
    is_installed = str(root) in sysconfig.get_paths().values() or root.name in ("site-packages", "dist-packages")
    sources: dict[str, bytes] = {}
    waiting = [*_list_parents(name), *_list_imports(package, source)]
    while waiting:
        other = waiting.pop()
        own = other.partition(".")[0]
        if other in (name, *sources) or own in ("", "fedray") or (is_installed and own != top):
            continue
        stem = root.joinpath(*other.split("."))
        for file in (stem / "__init__.py", *(stem.with_name(stem.name + suffix) for suffix in all_suffixes())):
            if (content := _read(file)) is not None:
                sources[other] = content.replace(b"\r\n", b"\n")
                waiting += _list_imports(other if file.stem == "__init__" else other.rpartition(".")[0], sources[other])
                break
        waiting += _list_parents(other)
    hashed = hashlib.sha256(source.encode())
    for other in sorted(sources):
        if sources[other].strip():  # an empty `__init__.py` is as good as none
            hashed.update(f"\0{other}\0".encode() + sources[other])
    return hashed.hexdigest()


def _list_parents(module: str) -> list[str]:
    """Return the packages that an import of a module imports before."""
    return [module[:end] for end, letter in enumerate(module) if letter == "."]


@lru_cache(maxsize=1000)
def _list_imports(package: str, source: str | bytes) -> list[str]:
    """Return the names of all modules that a source may import, given its package; some are names in a module."""
    names: list[str] = []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a library, or a file that cannot be imported
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # beyond the topmost package
                base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
                names += [str(base), *(f"{base}.{alias.name}" for alias in node.names)]
    return names
