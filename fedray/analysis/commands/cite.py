"""`fedray cite NAME`: BibTeX of a method, or of a sweep's methods, data, partitions and models, and of fedray.

The entries hold what the classes declare; a field that is not known is missing.
"""

from typing import Annotated, Any

import typer

from fedray.analysis.deposit.bibtex import find_component, format_entries, list_components
from fedray.common.errors import FORMS, escape, unknown
from fedray.common.location import is_there
from fedray.config import COMPONENTS
from fedray.tracking.store import find_sweeps, open_reader, read_cells


def main(name: Annotated[str, typer.Argument(help="a sweep of the store, or a method")]) -> None:
    """Print BibTeX of what a sweep uses, or of a method."""
    methods = COMPONENTS["algorithm"][0]
    sweeps: dict[str, Any] = {}
    if is_there():
        client, experiment = open_reader()
        sweeps = find_sweeps(client, experiment)
    if name in sweeps:
        cited = list_components(cell.config for cell in read_cells(client, sweeps[name]))
    elif name.removesuffix(FORMS) in methods:
        cited = [find_component("algorithm", name)]
    else:
        raise unknown("cite", name, [*sweeps, *methods])
    print("\n".join(map(escape, format_entries((one.name, one.paper) for one in cited).splitlines())))
