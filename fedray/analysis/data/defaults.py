"""fedray's own default of a configuration's key, to mark changed settings."""

import pandas as pd

from fedray.cells.spec import flatten
from fedray.common.errors import FORMS
from fedray.components.plugins import list_variants
from fedray.config import COMPONENTS, PLAIN


def find_default(key: str, cells: pd.DataFrame) -> str | None:
    """Return the default of a dotted key, as text; empty if by default it is left out.

    Args:
        key: a key of the configuration, with one value in all cells.
        cells: a row per cell, as in `SweepTable`.

    Returns:
        None for keys without a default: names, required options, options of several components or of a plug-in.
    """
    section, _, option = key.partition(".")
    kind = PLAIN.get(section)
    if section in COMPONENTS and f"{section}.name" in cells:
        names = cells[f"{section}.name"].dropna().unique()
        known = COMPONENTS[section][0] if not str(names[0]).endswith(FORMS) else list_variants()
        kind = known.get(names[0]) if len(names) == 1 else None
    field = None if kind is None else kind.model_fields.get(option.partition(".")[0])
    if kind is None or field is None or field.is_required():
        return None
    return flatten(kind.model_construct().model_dump(mode="json", warnings=False)).get(option, "")
