"""Writes the time of a process's first round to the file $FEDRAY_BENCH_NOTE; found on the search path."""

import importlib.util
import os
import sys
import time
from types import ModuleType
from typing import Any

MODULE = "fedray.engine.server.simulation"


class Finder:
    """Passes the module on unchanged, except for its first call of `Simulation.step`."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Find the module, called by `importlib`."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            note_first_step(module)

        loader.exec_module = exec_module
        return spec


def note_first_step(module: Any) -> None:
    """Write the time at which the first round begins, and then restore the method."""
    step = module.Simulation.step

    def noted(simulation: Any) -> None:
        module.Simulation.step = step
        with open(os.environ["FEDRAY_BENCH_NOTE"], "a", encoding="utf-8") as file:
            file.write(f"{time.time()}\n")
        step(simulation)

    module.Simulation.step = noted


if "FEDRAY_BENCH_NOTE" in os.environ:
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
