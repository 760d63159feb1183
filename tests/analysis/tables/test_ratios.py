"""Speed-ups and slowdowns: rounds to a target, divided by those of a method's run with the same setting and seed."""

import re

import pytest

from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import collect
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_markdown
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write


@pytest.mark.parametrize(("metric", "means"), [("slowdown", [1, 0.35]), ("speedup", [1, 3.5])])
def test_ratios_of_rounds_are_taken_seed_by_seed(store: Tracker, metric: str, means: list[float]) -> None:
    """To 80 %: fedavg in rounds 2, 5 and 3; fedsam in 1, 1 and never. Slowdowns 1/2 and 1/5, mean 0.35; speed-ups
    2 and 5, mean 3.5. The ratio of the means would be 1/3.5.

    At α = 0.1 fedavg never gets there, so fedsam's 1 round has nothing to be compared with.
    """
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1, 2)]
    cells += [cell(a, 0.1, 0) for a in (FEDAVG, SMALL)]
    curves = [(70, 80), (1, 2, 3, 4, 80), (1, 2, 80), (80,), (81,), (1, 2, 3), (1, 2), (80,)]
    write(store, cells, [history(*c) for c in curves])
    table = build(collect("sweep"), f"{metric}:80/fedavg")
    one, other = table.columns
    assert [table.entries[row, one].mean for row in table.rows] == means
    assert [dict(table.entries[row, one].others) for row in table.rows] == [{}, {"never": 1}]
    assert dict(table.entries["fedavg", other].others) == {"never": 1}
    assert dict(table.entries["fedsam", other].others) == {"without a counterpart": 1}
    assert "at least 80 %: " in table.title


def test_ratios_to_the_best_of_a_method(store: Tracker) -> None:
    """fedavg's best is 80, in round 2; fedsam reaches it in round 1: 2.00 times as fast, the best entry."""
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [history(70, 80), history(80, 1)])
    table = build(collect("sweep"), "speedup:fedavg/fedavg")
    assert "**2.00**" in to_markdown(table)
    assert table.title.endswith("setting by setting: fedavg's divided by the method's")
    message = "--metric: unknown name 'speedup:80/fedavgg'; did you mean 'speedup:80/fedavg'?"
    with pytest.raises(UserError, match=re.escape(message)):
        build(collect("sweep"), "speedup:80/fedavgg")
    with pytest.raises(UserError, match="which compares runs already; rounds_to:80 is allowed"):
        compare(collect("sweep"), "fedavg", "speedup:80/fedavg")
