"""Settings of a sweep's cells: shared by all, and varied."""

from typing import Any

import pandas as pd

from fedray.analysis.data.collect import OF_CELL
from fedray.analysis.data.defaults import find_default


def split_settings(cells: pd.DataFrame) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return configuration keys with one value, and those with several; keys that a component lacks do not count."""
    same, several = [], []
    for key in map(str, cells):
        if key in OF_CELL or key.startswith("metrics."):
            continue
        found = [str(value) for value in dict.fromkeys(cells[key].dropna())]
        everywhere = cells[key].notna().all()
        if len(found) == 1 and everywhere:
            default = find_default(key, cells)
            changed = default is not None and default != found[0]
            same.append({"key": key, "value": found[0], "changed": changed, "default": default or "none"})
        else:
            several.append((key, ", ".join(found) + ("" if everywhere else " (where it applies)")))
    return same, several
