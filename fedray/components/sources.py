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
import marshal
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, all_suffixes
from importlib.util import cache_from_source, decode_source, resolve_name, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import NamedTuple

from fedray.common.errors import UserError
from fedray.common.whole_files import read_file
from fedray.common.yaml_files import LARGEST

_held: dict[str, bytes | None] | None = None
"""The files that a call has read, and their contents (None: it did not exist); None outside of a call."""


class Sources(NamedTuple):
    """A call's working directory, the folders in which it has found classes, and the files that it has read."""

    folder: str = ""
    path: Sequence[str] = ()
    files: Mapping[str, bytes | None] = MappingProxyType({})


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
    """Finds the modules that a call holds where they were when it read them, and gives them their held source."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        tail, read = name.rpartition(".")[2], dict(_held or {})  # a copy: another thread may be reading more
        held = {file: source for file, source in read.items() if source is not None}
        if not any(f"/{tail}/" in file or file.endswith(f"/{tail}.py") for file in held):
            return None
        portions = list[str]()
        for folder in sys.path if path is None else path:
            stem = str(Path(folder).absolute() / tail)
            for file in (f"{stem}/__init__.py", f"{stem}.py"):
                if file in held:
                    return spec_from_file_location(name, file, loader=_HeldLoader(name, file, held[file]))
            spec = PathFinder.find_spec(name, [folder])
            if spec is not None and spec.loader is not None and spec.origin not in read:
                return spec
            if any(file.startswith(f"{stem}/") for file in held):  # a package without `__init__.py`
                portions.append(stem)
        if portions:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = portions
            return spec
        others = (finder for finder in sys.meta_path if finder is not _HeldFinder)  # of editable installations, say
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        file = "" if spec is None else str(spec.origin)
        return spec_from_file_location(name, file, loader=_HeldLoader(name, file, held[file])) if file in held else spec


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
    """Return this call's sources, also of some classes, each given by a section and `module:Class`."""
    for section, path in paths:
        with contextlib.suppress(UserError):  # a run that needs the digest has been refused
            digest_source(section, path)
    files = dict(_held or {})
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    return Sources(os.getcwd(), [one for one in folders if any(file.startswith(f"{one}/") for file in files)], files)


def take_sources(sources: Sources) -> None:
    """Work from now on in the call's folder, if this machine has it, and import the files that the call has read.

    What is loaded already stays as it is. A configuration's paths may be relative to the working directory.
    """
    global _held
    with contextlib.suppress(OSError):
        os.chdir(sources.folder)
    sys.path += [folder for folder in sources.path if folder not in sys.path]
    if not sources.files:  # no class of the user's own
        return
    loaders = {getattr(one, "__file__", None): getattr(one, "__loader__", None) for one in [*sys.modules.values()]}
    _held = {file: one for file, one in sources.files.items() if isinstance(loaders.get(file), _HeldLoader | None)}
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
        source, others = read_source(module), _read_imports(module)
    except (ImportError, OSError, TypeError, SyntaxError, UnicodeError):  # a notebook, the prompt, no .py file
        raise UserError(
            f"{section}.name: the source of {path} cannot be read, so a cell cannot tell when it changes; "
            "put the class in a .py file"
        ) from None
    hashed = hashlib.sha256(source.encode())
    for name, content in sorted(others.items()):
        if content.strip():  # an empty `__init__.py` is as good as none
            hashed.update(f"\0{name}\0".encode() + content)
    return hashed.hexdigest()


def is_loaded_otherwise(path: str) -> bool:
    """Return True if this process has loaded older code of `package.module:Class`, or of what this imports, than its
    files have now. Without Python's `__pycache__` that is known of functions alone.
    """
    module = importlib.import_module(path.partition(":")[0])
    return any(
        name in sys.modules and _is_older(sys.modules[name]) for name in (module.__name__, *_read_imports(module))
    )


def _is_older(module: ModuleType) -> bool:
    """Return True if Python compiled another source when it loaded a module than its file has now."""
    file, loader = str(getattr(module, "__file__", "")), getattr(module, "__loader__", None)
    if type(loader) is not SourceFileLoader or module is sys.modules["__main__"]:
        return False  # it has compiled the script that it runs, but left what an earlier import of it has written
    try:
        compiled, now = _read_compiled(file), os.stat(file)
        if compiled[4:16] == struct.pack("<III", 0, int(now.st_mtime), now.st_size):
            return False
        here = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
        return bool(marshal.loads(compiled[16:]) != here) if compiled else not {*_iter_loaded(module)} <= {*_walk(here)}  # noqa: S302 (Python has run it)
    except SyntaxError:  # it is being edited
        return True
    except (OSError, ValueError, EOFError, TypeError, struct.error):
        return False


def _read_compiled(file: str) -> bytes:
    """Return what Python has written of a source that it compiled; empty if it writes nothing, or checks it by hash."""
    with contextlib.suppress(OSError, NotImplementedError):
        cached = Path(cache_from_source(file))
        if not sys.dont_write_bytecode and os.access(cached.parent, os.W_OK):
            compiled = cached.read_bytes()
            return b"" if any(compiled[4:8]) else compiled
    return b""


def _iter_loaded(module: ModuleType) -> Iterator[CodeType]:
    """Yield the compiled code of the functions that a module has loaded, and of its classes' methods."""
    kinds = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    for holder in (module, *kinds):
        for one in vars(holder).values():
            if isinstance(one, property | staticmethod | classmethod):
                one = one.fget if isinstance(one, property) else one.__func__
            if isinstance(one, FunctionType) and one.__code__.co_filename == module.__file__:
                yield one.__code__


def _walk(code: CodeType) -> Iterator[CodeType]:
    """Yield a compiled source and what it defines, however deep."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _walk(one)


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


def _read_imports(module: ModuleType) -> dict[str, bytes]:
    """Return name -> source of the modules of a module's folder that it imports, directly or not."""
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
    return sources


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
