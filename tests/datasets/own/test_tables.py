"""Tables: which numbers a file becomes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.dataset import Dataset

OWN = """age,sex,ward,kind,part
1,m,b,yes,train
3,"f",a,no,train
5,m,b,yes,test
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(content: str = OWN, **options: Any) -> Dataset:
    Path("own.csv").write_text(content)
    return make_data_source({"name": "csv", "path": "own.csv", "label": "kind", **options}).load()


def test_numbers_are_standardised_by_the_training_rows_and_texts_become_columns() -> None:
    """Ages 1 and 3: mean 2, deviation 1; then 5 is 3. Sexes f and m; wards a and b are clients 0 and 1."""
    data = load(split="part", client="ward")
    assert data.x_train.tolist() == [[-1, 0, 1], [1, 1, 0]]
    assert data.x_test.tolist() == [[3, 0, 1]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([1, 0], [1], 2)
    assert data.client_train is not None
    assert data.client_test is not None
    assert (data.client_train.tolist(), data.client_test.tolist()) == ([1, 0], [1])
    plain = load(split="part", standardise=False, drop=["sex", "ward"])
    assert (plain.x_train.tolist(), plain.x_test.tolist()) == ([[1], [3]], [[5]])


def test_numbers_that_are_codes_are_texts_on_request() -> None:
    """Codes 1, 2 and X: a column each, in this order. Without `texts` the X among numbers counts as a slip."""
    content = "code,kind,part\n1,0,train\nX,1,train\n2,0,test\n"
    data = load(content, split="part", texts=["code"])
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[1, 0, 0], [0, 0, 1]], [[0, 1, 0]])
    assert load(content.replace("X", "3"), split="part", texts=["code"]).x_test.tolist() == [[0, 1, 0]]


def test_long_ids_are_told_apart() -> None:
    """2^53 and 2^53 + 1 are one number as float64, and two clients."""
    data = load(
        f"x,kind,who,part\n1,0,{2**53},train\n2,1,{2**53 + 1},train\n3,1,{2**53},test\n", split="part", client="who"
    )
    assert data.client_train is not None
    assert data.client_train.tolist() == [0, 1]


def test_a_second_file_is_the_test_set() -> None:
    """Labels 2 and 10 are the classes 0 and 1: integers sort as numbers."""
    Path("test.csv").write_text("kind,age\n10,7\n")
    data = load("age,kind\n1,10\n\n3,2\n", test_path="test.csv")
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[-1], [1]], [[5]])
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0], [1])


def test_missing_numbers_become_the_mean_of_the_training_rows() -> None:
    """Of 1, nothing and 3 in training: 2; the 8 in the test set does not count."""
    content = "age,kind,part\n1,0,train\n,1,train\n3,0,train\n8,1,test\n,1,test\n"
    data = load(content, split="part", standardise=False, missing="mean")
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[1], [2], [3]], [[8], [2]])


def test_a_constant_column_is_zero() -> None:
    assert load("age,kind,part\n4,0,train\n4,1,train\n4,1,test\n", split="part").x_train.tolist() == [[0], [0]]


@pytest.mark.parametrize("clients", [{"test": {"from": "clients"}}, {"split": "part"}])
def test_a_run_with_natural_clients(clients: dict[str, Any]) -> None:
    """Three wards of 40 rows whose class is the sign of the feature: one layer learns it."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(), ward, "test" if i % 4 == 0 else "train") for ward in "abc" for i in range(40)]
    load("age,ward,part,kind\n" + "\n".join(f"{x},{w},{p},{int(x > 0)}" for x, w, p in rows) + "\n", **clients)
    result = fedray.simulate(
        {
            "data": {"name": "csv", "path": "own.csv", "label": "kind", "client": "ward", "drop": ["part"], **clients},
            "partition": "natural",
            "clients": {"total": 3, "per_round": 3},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": "fedavg",
            "training": {"rounds": 5, "batch_size": 10},
            "evaluation": {"personal": {}},
            "runtime": {"backend": "inline"},
        }
    )
    assert result.problem.tests is not None
    assert result.problem.tests.sizes.tolist() == [10, 10, 10]
    assert result.history[-1]["test_accuracy"] > 85


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (OWN, {}, "data: found no test set; one of split, test_path and test: {from: clients} is required"),
        (OWN, {"split": "part", "test": {}}, "data: found split and test; one of split, test_path and test"),
        (OWN, {"split": "sex"}, "row 1, column sex: found 'm'; train or test is required"),
        (OWN, {"split": "part", "label": "kin"}, "data.label: unknown name 'kin'"),
        (OWN, {"split": "part", "drop": ["x"]}, "data.drop: unknown name 'x'"),
        (OWN, {"split": "part", "test_path": "x"}, "data: found split and test_path"),
        (OWN.replace("test", "train"), {"split": "part"}, "own.csv has no row for testing"),
        (OWN.replace("train", "test"), {"split": "part"}, "own.csv has no row for training"),
        (OWN.replace("3,", ","), {"split": "part"}, "row 2, column age: found ''; a number is required; data.missing"),
        (OWN.replace("3,", "inf,"), {"split": "part"}, "row 2, column age: found 'inf'; a finite number"),
        (OWN.replace("no", ""), {"split": "part"}, "row 2, column kind: found ''; a value is required"),
        (
            OWN.replace('"f"', ""),
            {"split": "part", "missing": "mean"},
            "row 2, column sex: found ''; a text is required",
        ),
        (OWN + "7,m\n", {"split": "part"}, "row 4 has 2 fields, the header 5"),
        (OWN.replace("sex", "age"), {"split": "part"}, "own.csv has two columns 'age'"),
        ("age,kind,part\n", {"split": "part"}, "own.csv has no rows below its header"),
        ("kind,part\n1,train\n0,test\n", {"split": "part"}, "own.csv has no column for features"),
        (OWN, {"split": "part", "client": "part"}, "data: the column 'part' is named for two purposes"),
        (
            OWN.replace("3,", "NA,"),
            {"split": "part"},
            "found 'NA'; a number is required; leave a missing one empty, or name the column in texts",
        ),
        (OWN.replace("3,", "nan,"), {"split": "part"}, "row 2, column age: found 'nan'; a number is required"),
        ("age,kind,part\n1,0.5,train\n1,1,test\n", {"split": "part"}, "found '0.5'; classes are texts or integers"),
    ],
)
def test_refused_in_one_line(content: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as found:
        load(content, **options)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_names_and_other_columns_are_refused() -> None:
    names = "".join(f"n{i},{i % 2},train\n" for i in range(1001)) + "n0,1,test\n"
    with pytest.raises(UserError, match="column name holds 1001 different texts; allowed are 1000"):
        load("name,kind,part\n" + names, split="part")
    Path("test.csv").write_text("kind,height\n1,7\n")
    with pytest.raises(UserError, match="only one of both files has the column 'age'"):
        load("age,kind\n1,1\n3,2\n", test_path="test.csv")
