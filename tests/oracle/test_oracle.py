"""fedray in float32 against the oracle in float64: six unequal clients, three of them per round; five rounds of the
plain setting, which each number is compared in, three of the others, in which clients come back with their states.

Weight decay and lr decay are on in every case; momentum, clipping, weights by samples, a server lr and shuffling in the
settings of `cases.SETTINGS`. Batches come from one order for both sides: as the samples lie, or fedray's shuffle
(`fedray.engine.training.local_training.draw_batches`, used for its indices only). The initial model is fedray's, in
float64.

The bound is 1e-5 on the largest difference of a parameter; rounding leaves about 1e-6. A ReLU's kink could leave more:
one activation on the other side of 0 moves a parameter by about lr/batch = 0.02. So the seed of a case (of its data and
of its initial model) is the first one for which the oracle, on its own, never comes closer to a kink than 1e-6."""

import dataclasses
import functools
import hashlib
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.fedgela import simplex_etf
from fedray.common.errors import UserError
from fedray.datasets.dataset import Dataset
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.training.batches import draw_batches
from fedray.papers.variants import VARIANTS
from tests import small

from .case import BASE, SETTINGS, Case
from .cases import CASES, NOT_COMPARED, ORACLES
from .classifiers import fedgela, fedrod_with_heads
from .nets import MLP, NormedMLP, SoftmaxRegression
from .tensors import Tensors
from .world import World

SIZES = (5, 9, 14, 7, 11, 16)
COHORTS = ((0, 2, 5), (1, 3, 4), (0, 1, 2), (2, 3, 5), (0, 4, 5))
SHAPE, CLASSES, HIDDEN = (2, 3, 1), 4, 8
INPUTS = int(np.prod(SHAPE))
TOLERANCE = 1e-5
METHODS = {**ALGORITHMS, **VARIANTS}


@functools.cache
def dataset(seed: int) -> Dataset:
    """Gaussian classes around random means; client i mostly holds the classes i and i+1 (modulo 4)."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, INPUTS))
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    n, own = len(owner), rng.random(len(owner)) < 0.7
    y = np.where(own, owner + rng.integers(0, 2, n), rng.integers(0, CLASSES, n)) % CLASSES
    x = (means[y] + rng.normal(size=(len(y), INPUTS))).astype(np.float32).reshape(-1, *SHAPE)
    return Dataset("synthetic", x, y.astype(np.int64), x[:5], y[:5].astype(np.int64), CLASSES, client_train=owner)


def list_cohorts(case: Case) -> tuple[tuple[int, ...], ...]:
    return COHORTS if case.setting == "plain" else COHORTS[:3]


def problem(case: Case, seed: int) -> Problem:
    """fedray's side of a case."""
    cohorts = list_cohorts(case)
    return small.problem(
        {"name": case.method, **case.options},
        {"total": len(SIZES), "per_round": 3, "cohorts": cohorts},
        {"name": "mlp", "hidden": [] if case.setting == "softmax" else [HIDDEN], **case.model},
        "natural",
        arrays=dataset(seed),
        seed=seed,
        training={**BASE, **SETTINGS[case.setting], **case.training, "rounds": len(cohorts)},
        evaluation={"every": len(cohorts), "last": 1},
        runtime={"backend": "inline", "device": "cpu"},
    )


def world(case: Case, seed: int) -> World:
    """The same federation in float64, from fedray's initial model."""
    given, data = problem(case, seed), dataset(seed)
    training, start = given.config.training, given.build_network("cpu").theta.numpy().astype(np.float64)
    net = SoftmaxRegression() if case.setting == "softmax" else NormedMLP() if case.model else MLP()
    shapes = net.shapes(INPUTS, HIDDEN, CLASSES)
    parts = np.split(start, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    x0 = Tensors({n: part.reshape(shape) for n, part, shape in zip(net.names, parts, shapes, strict=True)})
    x = data.x_train.reshape(-1, INPUTS).astype(np.float64)
    clients = [(x[data.client_train == i], data.y_train[data.client_train == i]) for i in range(len(SIZES))]
    order = {}
    for t, cohort in enumerate(list_cohorts(case)):
        if training.shuffle:
            order |= {(t, i): list(draw_batches(training, SIZES[i], seed, t, i)) for i in cohort}
    cohorts = [list(cohort) for cohort in list_cohorts(case)]
    of_both = {field.name: getattr(training, field.name) for field in dataclasses.fields(World) if field.name in BASE}
    return World(net, x0, clients, cohorts, training.epochs, order=order, channels=SHAPE[0], **of_both)


def answer(w: World, case: Case, **changed: Any) -> Tensors:
    """The oracle's final model."""
    return ORACLES[case.method.partition("@")[0]](w, **{**case.options, **changed})


def flat(p: Tensors) -> np.ndarray:
    return np.concatenate([value.ravel() for value in p.values()])


@functools.cache
def oracle(index: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Seed, initial and final theta of a case: the first seed that keeps clear of kinks."""
    case = CASES[index]
    for seed in range(10):
        w = world(case, seed)
        x = answer(w, case)
        if isinstance(w.net, SoftmaxRegression) or w.net.margin > 1e-6:
            return seed, flat(w.x0), flat(x)
    raise AssertionError("every seed comes close to a kink")


@functools.cache
def fedrays(index: int) -> np.ndarray:
    """fedray's final theta of a case."""
    seed, _, _ = oracle(index)
    return run(problem(CASES[index], seed), InlineBackend()).state.theta.numpy()


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.id for case in CASES])
def test_fedray_is_the_oracle(index: int) -> None:
    """max |Δθ| < 1e-5 after rounds that moved some parameter by more than 0.05."""
    _, start, expected = oracle(index)
    assert np.abs(expected - start).max() > 0.05
    assert np.abs(fedrays(index) - expected).max() < TOLERANCE


def test_fedrods_second_heads_are_the_oracles() -> None:
    """States of clients do not show in theta: every entry agrees within 1e-5, after moves of more than 0.05."""
    index = next(i for i, case in enumerate(CASES) if case.id == "fedrod-together")
    seed = oracle(index)[0]
    _, heads = fedrod_with_heads(world(CASES[index], seed))
    kept = run(problem(CASES[index], seed), InlineBackend()).state.clients
    assert sorted(kept) == list(range(len(SIZES)))
    for i, own in enumerate(heads):
        assert np.abs(own).max() > 0.05
        assert np.abs(kept[i]["head"].numpy() - own).max() < TOLERANCE


CHANGES = [(index, name) for index, case in enumerate(CASES) if case.setting == "plain" for name in case.numbers]


@pytest.mark.parametrize(("index", "name"), CHANGES, ids=[f"{CASES[i].id}-{name}" for i, name in CHANGES])
def test_the_comparison_can_fail(index: int, name: str) -> None:
    """An oracle whose hyper-parameter is 2 % off is outside the bound: every one of them is compared."""
    case, (seed, _, _) = CASES[index], oracle(index)
    changed = flat(answer(world(case, seed), case, **case.scaled(name, 1.02)))
    distance = np.abs(fedrays(index) - changed).max()
    assert distance < TOLERANCE if name in case.inert else distance > 3 * TOLERANCE


def test_no_two_cases_have_the_same_oracle() -> None:
    """Different methods and options move theta apart by more than the bound, unless equal by definition."""
    plain = [index for index, case in enumerate(CASES) if case.setting == "plain"]
    for position, i in enumerate(plain):
        for j in plain[:position]:
            one, other = CASES[i], CASES[j]
            if one.equals != other.id and one.model == other.model and oracle(i)[0] == oracle(j)[0]:
                assert np.abs(oracle(i)[2] - oracle(j)[2]).max() > 3 * TOLERANCE, (one.id, other.id)


@pytest.mark.parametrize("setting", [name for name, changes in SETTINGS.items() if changes])
def test_every_setting_matters(setting: str) -> None:
    """The oracle moves by more than the bound when a part of a setting is left out, in the first case that has it."""
    index = next(i for i, case in enumerate(CASES) if case.setting == setting)
    case, w = CASES[index], world(CASES[index], oracle(index)[0])
    for name in SETTINGS[setting]:
        field = "order" if name == "shuffle" else name
        without = answer(dataclasses.replace(w, **{field: getattr(World, field, {})}), case)
        assert np.abs(fedrays(index) - flat(without)).max() > 3 * TOLERANCE, name


@pytest.mark.parametrize("method", ["fedge@forms", "fedgela@forms"])
def test_simplex(method: str, tmp_path: Path) -> None:
    """Class vectors from a file: the oracle starts from them, and they are not those drawn by the seed."""
    rows = simplex_etf(CLASSES, HIDDEN).numpy()[::-1]
    np.save(tmp_path / "m.npy", rows)
    form = "one" if method == "fedge@forms" else "x"
    options = {"scale_w": 4.0, "simplex": str(tmp_path / "m.npy")}
    case = Case(method, options)
    w = world(case, 0)
    assert np.abs(w.x0["W2"] - 2 * rows).max() < 1e-6
    assert np.abs(run(problem(case, 0), InlineBackend()).theta.numpy() - flat(fedgela(w, 4.0, form))).max() < TOLERANCE
    drawn = Case(method, {"scale_w": 4.0})
    assert np.abs(world(drawn, 0).x0["W2"] - w.x0["W2"]).max() > 0.1
    identity = problem(case, 0).config.make_identity("")["algorithm"]
    assert identity["simplex"] == hashlib.sha256((tmp_path / "m.npy").read_bytes()).hexdigest()
    assert "simplex" not in problem(drawn, 0).config.make_identity("")["algorithm"]
    np.save(tmp_path / "m.npy", rows[:, 1:])
    with pytest.raises(UserError, match=r"algorithm\.simplex: found \(4, 7\); the model's head has \(4, 8\)"):
        world(case, 0)
    (tmp_path / "m.npy").write_text("text")
    with pytest.raises(UserError, match=r"algorithm\.simplex: .*m\.npy is not a \.npy file"):
        world(case, 0)


def test_every_method_has_an_oracle() -> None:
    """Nothing in the registry is left uncompared but by name and reason."""
    compared = {case.method.partition("@")[0] for case in CASES}
    assert not compared & NOT_COMPARED.keys()
    assert compared | NOT_COMPARED.keys() >= ALGORITHMS.keys()


@pytest.mark.parametrize("name", sorted(name for name in METHODS if name.partition("@")[0] not in NOT_COMPARED))
def test_every_option_is_compared(name: str) -> None:
    """Every value of a choice, a number other than the default, and each of FedSOL's proximal losses is covered; of
    other forms the options that they add."""
    plain = name.partition("@")[0]
    options = [case.options for case in CASES if case.method.partition("@")[0] == plain]
    for option, field in METHODS[name].model_fields.items():
        if name != plain and option in METHODS[plain].model_fields:
            continue
        used = {repr(given.get(option, field.default)) for given in options}
        if typing.get_origin(field.annotation) is typing.Literal:
            assert used == {repr(value) for value in typing.get_args(field.annotation)}, option
        elif field.annotation is bool:
            assert used == {"True", "False"}, option
        elif isinstance(field.default, int | float):
            assert used - {repr(field.default)}, option
        elif option != "simplex":  # test_simplex
            assert option == "proximal"
            losses = {given.get(option, {"name": field.default})["name"] for given in options}
            assert losses == METHODS[name].choices.keys()
