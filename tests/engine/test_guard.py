"""A method that changes what it may not, or gives another shape, is refused in one line that names its class."""

from typing import Any

import pytest
import torch

from fedray.algorithms.base import Algorithm, Client, Finetuning, PerClient, Proximal, Sum, Vectors
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.probing import Trained
from tests import small

HERE = "tests.engine.test_guard"


def define(name: str, members: dict[str, Any]) -> str:
    """Define a method in this module, where actors find it too; returns its path."""
    members = {"__module__": HERE, "name": name.lower()} | members
    globals()[name] = type(name, (Proximal if "proximal" in members else Algorithm,), members)
    return f"{HERE}:{name}"


def problem(path: str) -> Problem:
    return small.problem(
        path,
        (4, 4),
        4,
        evaluation={"every": 1, "personal": {"epochs": 1}},
        training={"rounds": 1, "local_steps": 3, "clip_scope": "code"},
    )


def double(owner: Any) -> None:
    owner.theta = 2 * owner.theta


def shorten(owner: Any) -> None:
    owner.theta = owner.theta[:-1]


def step(_: Algorithm, c: Client) -> torch.Tensor:
    """A step of the method's own, where fedray makes the step."""
    c.theta = c.theta - 0.1 * c.grad(c.theta)
    return c.grad(c.theta)


def write_later(_: Algorithm, c: Client) -> torch.Tensor:
    """In the second step: no other client shares this theta, but `c.update` would be that of another."""
    if c.step == 1:
        c.theta.mul_(0.5)
    return c.grad(c.theta)


def nothing(*_: object) -> dict[str, Sum]:
    return {}


def discard(_: object) -> None:
    """For a hook that returns nothing."""


def ones(*_: object) -> Vectors:
    return Vectors(delta=torch.ones(3))


WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "WritesTheta": ("c.theta", {"begin": lambda _, c: setattr(c, "theta", c.theta.mul_(0.99))}),
    "WritesMessage": ("c.message.delta", {"message": ones, "begin": lambda _, c: discard(c.message.delta.div_(2))}),
    "WritesState": ("c.state.delta", {"client_state": ones, "upload": lambda _, c: nothing(c.state.delta.add_(1))}),
    "WritesView": ("c.theta_0", {"upload": lambda _, c: nothing(c.theta_0[:3].zero_())}),
    "WritesServer": ("server.theta", {"aggregate": lambda _, server, got: discard(server.theta.add_(got.update))}),
    "WritesInMessage": (
        "server.state.delta",
        {"server_state": ones, "message": lambda _, server: Vectors(delta=server.state.delta.mul_(0.5))},
    ),
    "WritesWhenTested": ("c.theta_0", {"prepare": lambda _, c: discard(c.theta_0.zero_())}),
}
"""Class -> what it changes in place, and its hooks."""

ASSIGNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "StepsInDirection": ("c", "direction", {"direction": step}),
    "StepsInGradient": ("c", "gradient", {"gradient": step}),
    "StepsInProximal": ("c", "proximal", {"proximal": lambda _, c, theta: step(_, c)}),
    "StepsInRate": ("c", "rate", {"rate": lambda _, c: double(c) or c.lr}),
    "StepsInPart": ("c", "trained_part", {"trained_part": lambda _, c: double(c) or "all"}),
    "StepsInOptimizer": (
        "c",
        "local_optimizer",
        {"bound_to_sgd": "has one", "local_optimizer": lambda _, c: double(c)},
    ),
    "StepsInWeight": ("c", "decoupled_weight", {"decoupled_weight": lambda _, c: double(c) or 0.0}),
    "StepsWhenTuned": (
        "c",
        "direction",
        {"finetuning": property(lambda self: Finetuning(direction=lambda c: step(self, c)))},
    ),
    "StepsInLogits": (
        "c",
        "personal_logits",
        {"personal_logits": lambda _, c: double(c) or c.predict(c.theta).logits},
    ),
    "AggregatesInMessage": ("server", "message", {"message": lambda _, server: double(server) or Vectors()}),
    "AggregatesInStep": ("server", "server_step", {"server_step": lambda _, server, got: double(server) or 1.0}),
}
"""Class -> the owner of the θ that it assigns, the hook, whose value alone counts, and its hooks."""

GIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "MisspellsState": (
        "sets c.state.delat, which does not exist; did you mean c.state.delta? ",
        {"client_state": ones, "upload": lambda _, c: setattr(c.state, "delat", c.state.delta) or {}},
    ),
    "MisspellsServer": (
        "sets server.state.delat, which does not exist; did you mean server.state.delta? ",
        {"server_state": ones, "aggregate": lambda _, server, got: setattr(server.state, "delat", got.update)},
    ),
    "NoServer": (
        "sets server.theta in aggregate to a value of type NoneType; Tensor is required",
        {"aggregate": lambda _, server, got: setattr(server, "theta", None)},
    ),
    "DoubleServer": (
        "sets server.theta in aggregate to a value of type torch.float64; torch.float32 is required",
        {"aggregate": lambda _, server, got: setattr(server, "theta", server.theta.double())},
    ),
    "ShortBroadcast": (
        "gives a broadcast of shape ({short},); ({size},) is required",
        {"broadcast": lambda _, server: server.theta[:-1]},
    ),
    "ShortInitial": (
        "gives an initial model of shape ({short},); ({size},) is required",
        {"initial": lambda _, theta, layout: theta[:-1]},
    ),
    "OneDirection": (
        "gives a direction of shape (); ({size},) is required",
        {"direction": lambda _, c: c.grad(c.theta).mean()},
    ),
    "ShortBegin": (
        "sets c.theta in begin to a value of shape ({short},); ({size},) is required",
        {"begin": lambda _, c: shorten(c)},
    ),
    "ShortPersonal": (
        "sets c.theta in prepare to a value of shape ({short},); ({size},) is required",
        {"prepare": lambda _, c: shorten(c)},
    ),
    "ShortOwn": (
        "gives newcomers_own of shape ({short},); ({size},) is required",
        {
            "keeps": "all",
            "shares": "none",
            "personal": "kept",
            "newcomers_own": lambda _, initial, message: initial[:-1],
        },
    ),
    "OneLogit": ("gives logits of shape (1, 10); (", {"logits": lambda _, output: output.logits[:1]}),
    "FlatLogits": (
        "gives personal_logits of shape (",
        {"personal_logits": lambda _, c: c.predict(c.theta).logits.flatten()},
    ),
}
"""Class -> the beginning of what it gives in another shape or type or under another name, and its hooks."""

CASES = dict(GIVES)
for name, (what, members) in WRITES.items():
    instead = f"{'z' if what == 'c.theta_0' else what} = {what} - v, not {what} -= v"  # no hook assigns c.theta_0
    said = f"changes {what} in place, which others share; assign a new tensor instead ({instead})"
    CASES[name] = said, members
RETURNS = ", where only the value that it returns counts; return that alone "
for name, (owner, hook, members) in ASSIGNS.items():
    allowed = "aggregate" if owner == "server" else "begin, upload and prepare"
    CASES[name] = f"assigns {owner}.theta in {hook}{RETURNS}({allowed} may assign {owner}.theta)", members
CASES["WritesLater"] = (
    f"changes c.theta in place in direction{RETURNS}(begin, upload and prepare may assign c.theta)",
    {"direction": write_later},
)
PATHS = {name: define(name, members) for name, (_, members) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_what_a_hook_may_not_do_is_refused_by_its_class(name: str) -> None:
    size = problem("fedavg").build_network("cpu").layout.size
    with pytest.raises(UserError) as caught:
        run(problem(PATHS[name]), InlineBackend())
    said = CASES[name][0].format(size=size, short=size - 1)
    assert str(caught.value).startswith(f"algorithm: class {name} ({HERE}:{name}) {said}")


def test_begin_upload_and_prepare_may_assign_theta() -> None:
    hooks = {"begin": lambda _, c: double(c), "upload": lambda _, c: double(c) or {}, "prepare": lambda _, c: double(c)}
    run(problem(define("AssignsTheta", hooks)), InlineBackend())


class Counting(Algorithm):
    seen: dict[str, int] = {}

    def direction(self, c: Client) -> torch.Tensor:
        self.seen["steps"] = self.seen.get("steps", 0) + 1
        return c.grad(c.theta) / self.seen["steps"]


def test_an_option_that_a_hook_changes_is_named() -> None:
    """It would go on from client to client of a process, so that the numbers depend on how many there are."""
    with pytest.raises(UserError, match=r"Counting\) changes its option seen; what changes is a state$"):
        run(problem(f"{HERE}:Counting"), InlineBackend())


class UnequalUploads(Algorithm):
    """A client's number of samples as the length: PyTorch would repeat a vector of one number."""

    name = "unequal_uploads"
    each: bool = False

    def upload(self, c: Client) -> dict[str, Sum | PerClient]:
        vector = torch.ones(c.samples)
        return {"h": PerClient(vector) if self.each else Sum(vector)}


@pytest.mark.parametrize("each", [False, True])
def test_the_uploads_of_a_name_have_one_shape(each: bool) -> None:
    method, training = {"name": f"{HERE}:UnequalUploads", "each": each}, {"rounds": 1, "local_steps": 1}
    made = small.problem(method, (4, 4), 4, 0.5, training=training)
    with pytest.raises(UserError, match=r"^algorithm: an upload 'h' has shape \(\d+,\) from one client and \(\d+,\)"):
        run(made, InlineBackend())


def test_the_uploads_of_a_name_have_one_shape_in_all_processes() -> None:
    """1 and 2 numbers of two processes: PyTorch would add the one to both."""
    parts = [Reply(sums={"h": torch.ones(size, dtype=torch.int64)}) for size in (1, 2)]
    theta, buffers = torch.ones(1), torch.ones(0)
    broadcast = Broadcast(round=0, lr=0.1, theta=theta, buffers=buffers, message=Vectors(), cohort=2, measured=False)
    with pytest.raises(UserError, match=r"'h' has shape \(1,\) from one client and \(2,\) from another"):
        Trained({}, broadcast, parts, Reply(), dropped=0)


def test_assigning_to_the_message_reaches_no_other_client() -> None:
    """Each client's three steps see 1/2, 1/4, 1/8, in any order of training."""

    def direction(_: Algorithm, c: Client) -> torch.Tensor:
        c.message.delta = c.message.delta * 0.5
        return c.grad(c.theta) * c.message.delta

    message = {"message": lambda *_: Vectors(delta=torch.ones(1)), "direction": direction}
    path, reversed_order = define("AssignsMessage", message), InlineBackend()
    train = reversed_order.train
    reversed_order.train = lambda broadcast, tasks: train(broadcast, tasks[::-1])  # type: ignore[method-assign]
    found = [run(problem(path), backend).summary()["theta_sha256"] for backend in (InlineBackend(), reversed_order)]
    assert found[0] == found[1]


def test_an_upload_named_as_fedray_s_own_is_refused() -> None:
    path = define("UploadsUpdate", {"upload": lambda _, c: {"update": Sum(c.update)}})
    with pytest.raises(
        UserError, match=f"^algorithm: {path}.upload gives an upload 'update', fedray's own; rename it$"
    ):
        run(problem(path), InlineBackend())
