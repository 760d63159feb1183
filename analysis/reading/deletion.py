"""Which runs belong to a sweep alone."""

from mlflow.exceptions import MlflowException

from analysis.reading.collect import collect
from fedray.common.errors import UserError
from fedray.tracking.store import open_store, search


def deletable(name: str) -> tuple[list[str], int]:
    """What `fedray rm` deletes.

    Args:
        name: a sweep's name, or the id of one run.

    Returns:
        Ids of the runs: the sweep's own and its cells', without those that another sweep lists. How many those are.

    Raises:
        UserError: there is no such sweep or run.
    """
    client, experiment = open_store()
    sweeps = {
        run.data.tags["fedray.sweep"]: run.info.run_id
        for run in search(client, experiment, "tags.`fedray.kind` = 'sweep'")
    }
    if name not in sweeps:
        try:
            found = client.get_run(name)
        except MlflowException:
            raise UserError(f"rm: {name!r} is neither a sweep nor the id of a run in this store") from None
        if found.data.tags.get("fedray.kind") != "cell" or found.info.lifecycle_stage != "active":
            raise UserError(f"rm: {name} is not the id of a run that can be deleted")
        return [name], 0
    shared = {cell for other in sweeps.keys() - {name} for cell in collect(other).cells["cell"]}
    cells = collect(name).cells
    own = cells[cells["run_id"].notna() & ~cells["cell"].isin(shared)]
    kept = int((cells["run_id"].notna() & cells["cell"].isin(shared)).sum())
    return [sweeps[name], *own["run_id"]], kept
