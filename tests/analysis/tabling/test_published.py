"""The papers' numbers as files, and what the loader refuses."""

from pathlib import Path

import pytest

from analysis.tabling.published import COLUMNS, _rows, load, prints, read, tables
from fedray.common.errors import UserError


def test_every_file_is_what_the_readme_promises() -> None:
    """27 tables, 2039 printed cells. `load` itself refuses empty keys, text for numbers, accuracies outside 0..100."""
    assert len(tables()) == 27
    rows = {name: load(name) for name in tables()}
    assert sum(map(len, rows.values())) == 2039
    for name, table in rows.items():
        assert set(table["paper"] + "/table" + table["table"]) == {name}
        numbered = table["partition"].isin(["dirichlet", "sharding", "pathological", "pxcy"])
        assert (table.loc[numbered, "partition_param"] != "").all(), name
        assert table["value"].notna().any(), name


def test_numbers_looked_up_in_the_papers() -> None:
    sol = load("fedsol/table2")
    one = sol[(sol["dataset"] == "cifar10") & (sol["partition_param"] == "0.1") & (sol["method"] == "fedavg")]
    assert one["value"].tolist() == [56.13]
    toga = load("fedtoga/table8")
    never = toga[toga["notes"].str.contains("800+", regex=False)]
    assert len(never) > 0
    assert never["value"].isna().all()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("method", "", "x.csv, line 2: method is empty"),
        ("metric", "accuracy", "x.csv, line 2: metric is none of test_accuracy"),
        ("value", "93.0193.01", "x.csv, line 2: value is not a number: found 93.0193.01"),
        ("value", "100.5", "x.csv, line 2: value is not within 0..100: found 100.5"),
        ("value", "-1", "x.csv, line 2: value is not within 0..100"),
        ("std", "-1", "x.csv, line 2: std is negative"),
    ],
)
def test_a_bad_line_is_named(column: str, value: str, message: str, tmp_path: Path) -> None:
    row = dict.fromkeys(COLUMNS, "1") | {"metric": "test_accuracy", column: value}
    (tmp_path / "x.csv").write_text(f"{','.join(COLUMNS)}\n{','.join(row[name] for name in COLUMNS)}\n")
    with pytest.raises(UserError) as error:
        read(tmp_path / "x.csv")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedsoll/table2", "published paper: unknown name 'fedsoll'; did you mean 'fedsol'?"),
        ("fedsol/table7", "published table of fedsol: unknown name 'table7'; did you mean"),
        ("quickstart", "published paper: unknown name 'quickstart'; valid: fedgela, fedsam, fedsol, fedtoga"),
    ],
)
def test_unknown_tables_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_metrics_over_clients_are_the_printed_deviations() -> None:
    """FedSAM prints 95.07(0.94) for training and 84.38(4.03) for validation of FedAvg on EMNIST."""
    for metric, value in {
        "personal_train_accuracy": 95.07,
        "personal_train_std": 0.94,
        "best_personal_accuracy": 84.38,
        "personal_std": 4.03,
    }.items():
        rows = _rows("fedsam/table1", metric)
        assert rows[(rows["dataset"] == "emnist") & (rows["method"] == "fedavg")]["value"].tolist() == [value]
    assert (_rows("fedsol/table9", "personal_std")["value"] > 0).all()
    assert not prints("fedgela/table2", "personal_std")
