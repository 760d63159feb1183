"""`fedray cite` of a sweep of the store, of a method, and of neither."""

from typer.testing import CliRunner

from fedray.analysis.deposit.bibtex import FEDRAY
from fedray.cli.main import app
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import write
from tests.tracking.archive.archived import FEDAVG, SMALL, cell


def test_a_sweep_and_a_method(store: Tracker) -> None:
    """Methods come first, in the sweep's order, then data (digits) and partition; `mlp` has no paper."""
    write(store, [cell(FEDAVG, 0.1, 0), cell(SMALL, 0.1, 0)], [60])
    answer = CliRunner().invoke(app, ["cite", "sweep"])
    assert answer.exit_code == 0
    keys = [line.partition("{")[2].rstrip(",") for line in answer.output.splitlines() if line.startswith("@")]
    assert keys == [
        "mcmahan2017communication",
        "qu2022generalized",
        "alpaydin1998optical",
        "yurochkin2019bayesian",
        "fedray",
    ]
    assert "% without a paper: mlp" in answer.output
    method = CliRunner().invoke(app, ["cite", "fedsam"]).output
    assert method.startswith("% fedsam\n@inproceedings{qu2022generalized,")
    assert method.endswith(str(FEDRAY))


def test_an_unknown_name(store: Tracker) -> None:
    answer = CliRunner().invoke(app, ["cite", "fedtogaa"])
    assert isinstance(answer.exception, UserError)
    assert str(answer.exception).startswith("cite: unknown name 'fedtogaa'; did you mean 'fedtoga'? valid: apfl, ")
