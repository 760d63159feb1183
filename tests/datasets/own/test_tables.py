"""Tables: which numbers a file becomes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.dataset import Dataset
from tests import small

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
    """Ages -1 and 3: mean 1, deviation 2; then 5 is 2. Sexes f and m; wards a and b are clients 0 and 1."""
    data = load(OWN.replace("1,m", "-1,m"), split="part", client="ward")
    assert data.x_train.tolist() == [[-1, 0, 1], [1, 1, 0]]
    assert data.x_test.tolist() == [[2, 0, 1]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([1, 0], [1], 2)
    assert (data.client_train.tolist(), data.client_test.tolist()) == ([1, 0], [1])
    plain = load(OWN, split="part", standardise=False, drop=["sex", "ward"])
    assert (plain.x_train.tolist(), plain.x_test.tolist()) == ([[1], [3]], [[5]])


def rows(column: str, values: list[str]) -> str:
    """A table whose column f, kind or who has these values in the training rows, and the first one in a test row."""
    content = "f,kind,who,part\n"
    for i, value in enumerate([values[0], *values]):
        fields = {"f": str(i), "kind": str(i % 2), "who": "0", "part": "train" if i else "test"} | {column: value}
        content += ",".join(f'"{field}"' for field in fields.values()) + "\n"
    return content


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["1_1", "11", "1E2", "7", "8"], [2, 0, 1, 3, 4]),  # texts sort as texts: 11, 1E2, 1_1, 7, 8
        (["10", "9", "2"], [2, 1, 0]),
        ([str(2**53 + 1), str(2**53), "9" * 40], [1, 0, 2]),  # as float64 the first two are one number
        (["b", "B", "a"], [2, 0, 1]),
    ],
)
@pytest.mark.parametrize("column", ["who", "kind"])
def test_codes_of_clients_and_classes_are_told_apart(column: str, values: list[str], numbers: list[int]) -> None:
    """Python would read 1_1 as 11, 2_0 as 20 and long integers as the nearest float."""
    data = load(rows(column, values), split="part", client="who")
    found = data.client_train if column == "who" else data.y_train
    assert found.tolist() == numbers


@pytest.mark.parametrize("pair", [("05", "5"), ("100", "1E2"), ("11", "\uff11\uff11"), ("Ko\u0308ln", "K\u00f6ln")])
@pytest.mark.parametrize("column", ["who", "kind"])
def test_two_spellings_of_one_client_or_class_are_refused(column: str, pair: tuple[str, str]) -> None:
    with pytest.raises(UserError) as found:
        load(rows(column, [*pair, "7"]), split="part", client="who")
    message = f"column {column}: found {min(pair)!a} and {max(pair)!a}, two spellings of one; use one of them"
    assert str(found.value) == f"data.path: own.csv: {message}"


@pytest.mark.parametrize(
    "value", ["1,5", "1.234.567", "1 234", "1_000", "5%", "$5", "3 kg", "<0.01", "(5)", "\u0661\u0662"]
)
def test_a_column_of_numbers_in_another_style_is_refused(value: str) -> None:
    """Each would be a text, with a feature of 0 and 1 for every value. As codes they are accepted on request."""
    content = rows("f", [value, value, "NA"])
    with pytest.raises(UserError, match=r"row 1, column f: found .*a plain decimal such as -1\.5 or 2e-3 is required"):
        load(content, split="part", drop=["who"])
    assert load(content, split="part", drop=["who"], texts=["f"]).x_train.shape == (3, 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1e-05", "-2.5E+1", ".5", "3."], [[1e-5], [-25], [0.5], [3]]),
        (["12.05.1999", "10.0.0.1", "1-2"], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]),
        (["3a", "2b", "1a"], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]),
    ],
)
def test_plain_decimals_and_texts_with_digits_are_accepted(values: list[str], expected: list[list[float]]) -> None:
    """Sorted, the texts are 1-2, 10.0.0.1, 12.05.1999."""
    data = load(rows("f", values), split="part", drop=["who"], standardise=False)
    np.testing.assert_allclose(data.x_train, expected, rtol=1e-6)


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_another_separator_is_named(mark: str, word: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.path: own\.csv has {word} in its header; commas between"):
        load(OWN.replace(",", mark), split="part")
    Path("test.csv").write_text(OWN.replace(",", mark))
    with pytest.raises(UserError, match=rf"^data\.test_path: test\.csv has {word} in its header; commas between"):
        load(OWN, test_path="test.csv")


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


@pytest.mark.parametrize("value", ["4", "0.1"])
def test_a_constant_column_is_zero(value: str) -> None:
    """Ten times 0.1 has a computed deviation of 1.4e-17, by which the 1 of the test row would be divided."""
    rows = "".join(f"{value},{i % 2},train\n" for i in range(10))
    data = load(f"age,kind,part\n{rows}1,1,test\n", split="part")
    assert data.x_train.tolist() == [[0]] * 10
    np.testing.assert_allclose(data.x_test, [[1 - float(value)]])


def test_one_file_for_training_and_testing_is_refused() -> None:
    Path("own.csv").write_text(OWN)
    Path("hard").hardlink_to("own.csv")
    with pytest.raises(UserError, match=r"^data\.test_path: .+ is the file of data\.path; other rows are required$"):
        load(test_path="hard")


@pytest.mark.parametrize("clients", [{"test": {"from": "clients"}}, {"split": "part"}])
def test_a_run_with_natural_clients(clients: dict[str, Any]) -> None:
    """Three wards of 40 rows whose class is the sign of the feature: one layer learns it."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(), ward, "test" if i % 4 == 0 else "train") for ward in "abc" for i in range(40)]
    load("age,ward,part,kind\n" + "\n".join(f"{x},{w},{p},{int(x > 0)}" for x, w, p in rows) + "\n", **clients)
    data = {"name": "csv", "path": "own.csv", "label": "kind", "client": "ward", "drop": ["part"], **clients}
    training = {"rounds": 5, "batch_size": 10}
    result = fedray.simulate(
        small.sections("fedavg", (3, 3), 8, "natural", data=data, training=training, evaluation={"personal": {}})
    )
    assert result.problem.split.test.sizes.tolist() == [10, 10, 10]
    assert result.history[-1]["test_accuracy"] > 85


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (OWN, {}, "data: found no test set; one of split, test_path and test: {from: clients} is required"),
        (OWN, {"split": "part", "test": {}}, "data: found split and test; one of split, test_path and test"),
        (OWN, {"split": "part", "label": "kin"}, "data.label: unknown name 'kin'"),
        (OWN, {"split": "sex"}, "row 1, column sex: found 'm'; train or test is required"),
        (OWN.replace("test", "train"), {"split": "part"}, "own.csv has no row for testing"),
        (OWN.replace("3,", ","), {"split": "part"}, "row 2, column age: found ''; a number is required; data.missing"),
        (OWN.replace("3,", "inf,"), {"split": "part"}, "row 2, column age: found 'inf'; a finite number"),
        (OWN.replace("no", ""), {"split": "part"}, "row 2, column kind: found ''; a value is required"),
        (OWN.replace('"f"', ""), {"split": "part", "missing": "mean"}, "row 2, column sex: found ''; a text is"),
        (OWN + "7,m\n", {"split": "part"}, "row 4 has 2 fields, the header 5"),
        (OWN.replace("sex", "age"), {"split": "part"}, "own.csv has two columns 'age'"),
        ("age,kind,part\n", {"split": "part"}, "own.csv has no rows below its header"),
        ("kind,part\n1,train\n0,test\n", {"split": "part"}, "own.csv has no column for features"),
        (OWN, {"split": "part", "client": "part"}, "data: the column 'part' is named for two purposes"),
        (
            OWN.replace("3,", "NA,"),
            {"split": "part"},
            "found 'NA'; a number is required; leave a missing one empty, or",
        ),
        (
            "name,kind,part\n" + "".join(f"n{i},{i % 2},train\n" for i in range(1001)) + "n0,1,test\n",
            {"split": "part"},
            "column name holds 1001 different texts; allowed are 1000",
        ),
        ("age,kind\n1,1\n", {"test_path": "test.csv"}, "only one of both files has the column 'age'"),
        ("age,kind,part\n1,0.5,train\n1,1,test\n", {"split": "part"}, "found '0.5'; classes are texts or integers"),
    ],
)
def test_refused_in_one_line(content: str, options: dict[str, Any], message: str) -> None:
    Path("test.csv").write_text("kind,height\n1,7\n")
    with pytest.raises(UserError) as found:
        load(content, **options)
    assert message in str(found.value)
    assert "\n" not in str(found.value)
