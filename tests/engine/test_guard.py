"""A method that changes what it may not, or gives another shape, is refused in one line that names its class."""

import re
import sys
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from torch.nn.functional import cross_entropy

import fedray
from fedray.algorithms.base import Algorithm, Client, Finetuning, Forward, PerClient, Proximal, Rule, Sum, Vectors
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.probing import Trained
from tests import small
from tests.conftest import each

HERE = "tests.engine.test_guard"


def define(name: str, members: dict[str, Any]) -> str:
    """Define a method in this module, where actors find it too; returns its path."""
    members = {"__module__": HERE, "name": name.lower()} | members
    globals()[name] = type(name, (Proximal if "proximal" in members else Algorithm,), members)
    return f"{HERE}:{name}"


def problem(path: Any) -> Problem:
    training = {"rounds": 1, "local_steps": 3, "clip_scope": "code"}
    return small.problem(path, (4, 4), 4, evaluation={"every": 1, "personal": {"epochs": 1}}, training=training)


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


def regularise(self: Any, forward: Forward, x: Any, y: Any, theta: torch.Tensor) -> torch.Tensor:
    return cross_entropy(forward(x).logits, y) + theta.square().sum()


def descend_with(read: Any, second: bool = False) -> Any:
    """A direction whose loss has a term in what `read` gives."""

    def direction(_: Algorithm, c: Client) -> torch.Tensor:
        return (c.second if second else c).grad(
            c.theta_0 if second else c.theta,
            lambda forward: cross_entropy(forward(c.x).logits, c.y) + 0.1 * read(c).square().sum(),
        )

    return direction


def second_with_decay(_: Algorithm, c: Client) -> torch.Tensor:
    c.second.grad(c.local.v, lambda forward: cross_entropy(forward(c.x).logits, c.y) + 0.1 * c.local.v.square().sum())
    return c.grad(c.theta)


class Heavy(Rule):
    """Momentum 1/2, for whoever holds it."""

    def displacement(self, q: torch.Tensor, decay: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.state.v = 0.5 * self.state["v"] + q if "v" in self.state else q
        return self.state.v


HEAVY = Heavy()


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
    "WritesUpdate": ("c.update", {"upload": lambda _, c: nothing(c.update.mul_(0.5))}),
    "WritesShared": ("c.shared_update", {"shares": "body", "upload": lambda _, c: nothing(c.shared_update.mul_(0.5))}),
    "WritesReceived": ("got.update", {"aggregate": lambda _, server, got: discard(got.update.mul_(0.5))}),
    "WritesUpload": (
        "got.h",
        {
            "upload": lambda _, c: {"h": Sum(torch.ones(2))},
            "server_step": lambda _, server, got: discard(got.h.zero_()) or 1.0,
        },
    ),
    "WritesWhenTested": ("c.theta_0", {"prepare": lambda _, c: discard(c.theta_0.zero_())}),
}
"""Class -> what it changes in place, and its hooks."""

BOUND, WHERE = {"bound_to_sgd": "has one"}, ", where only the value that it returns counts; return that alone "
TUNED = property(lambda self: Finetuning(direction=lambda c: step(self, c)))
ASSIGNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "StepsInDirection": ("c", "direction", {"direction": step}),
    "StepsInGradient": ("c", "gradient", {"gradient": step}),
    "StepsInProximal": ("c", "proximal", {"proximal": lambda _, c, theta: step(_, c)}),
    "StepsInRate": ("c", "rate", {"rate": lambda _, c: double(c) or c.lr}),
    "StepsInPart": ("c", "trained_part", {"trained_part": lambda _, c: double(c) or "all"}),
    "StepsInOptimizer": ("c", "local_optimizer", BOUND | {"local_optimizer": lambda _, c: double(c)}),
    "StepsInWeight": ("c", "decoupled_weight", {"decoupled_weight": lambda _, c: double(c) or 0.0}),
    "StepsWhenTuned": ("c", "direction", {"finetuning": TUNED}),
    "StepsInLogits": ("c", "personal_logits", {"personal_logits": lambda _, c: double(c) or c.predict(c.theta).logits}),
    "AggregatesInMessage": ("server", "message", {"message": lambda _, server: double(server) or Vectors()}),
    "AggregatesInStep": ("server", "server_step", {"server_step": lambda _, server, got: double(server) or 1.0}),
}
"""Class -> the owner of the θ that it assigns, the hook, whose value alone counts, and its hooks."""

LOSS = (
    ", which is differentiated by the model's parameters alone; add the term's gradient to the direction: "
    "c.grad(c.theta) + mu * (c.theta - c.theta_0); a constant is c.theta."
)
READS = f"reads c.theta in the loss of c.grad{LOSS}detach()"
PREVIOUS, OWN = "sets server.state.previous_theta, fedray's own; rename it", "sets c.state.own, fedray's own; rename it"
HEAD, SHORT = {"keeps": "head", "shares": "body"}, " of shape ({short},); ({size},) is required"
GIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "PassesTheta": (
        f"passes the theta of c.grad to its loss{LOSS}clone()",
        {"loss": regularise, "direction": lambda self, c: c.grad(c.theta, self.loss, c.theta)},
    ),
    "ReadsTheta": (READS, {"direction": descend_with(lambda c: c.theta - c.theta_0)}),
    "ReadsUpdate": (READS, {"direction": descend_with(lambda c: c.update)}),
    "ReadsLocal": (READS, {"direction": lambda self, c: (lambda y: descend_with(lambda c: y)(self, c))(c.theta)}),
    "ReadsSecond": (
        "reads theta in the loss of c.grad, ",
        {"begin": lambda _, c: setattr(c.local, "v", 2 * c.theta), "direction": second_with_decay},
    ),
    "SetsInMessage": (
        f"assigns server.state.delta in message{WHERE}(aggregate may assign server.state)",
        {"server_state": ones, "message": lambda _, server: discard(setattr(server.state, "delta", 0)) or Vectors()},
    ),
    "AddsInBroadcast": (
        f"assigns server.state.mean in broadcast{WHERE}(aggregate may assign server.state)",
        {"broadcast": lambda _, server: discard(setattr(server.state, "mean", server.theta)) or server.theta},
    ),
    "SetsRate": (
        f"assigns server.server_lr in message{WHERE}(aggregate may assign server.state)",
        {"message": lambda _, server: discard(setattr(server, "server_lr", 0.5)) or Vectors()},
    ),
    "ZerosServer": (
        "changes theta in place in server_state, which others share; return a new tensor instead ",
        {"server_state": lambda _, theta: Vectors(m=theta.zero_())},
    ),
    "ZerosClient": (
        "changes theta in place in client_state, which others share; return a new tensor instead ",
        {"client_state": lambda _, theta: Vectors(m=theta.zero_())},
    ),
    "NamesPrevious": (PREVIOUS, {"server_state": lambda _, theta: Vectors(previous_theta=theta)}),
    "SetsPrevious": (PREVIOUS, {"aggregate": lambda _, s, got: setattr(s.state, "previous_theta", s.theta)}),
    "NamesOwn": (OWN, HEAD | {"client_state": lambda _, theta: Vectors(own=theta)}),
    "SetsOwn": (OWN, HEAD | {"upload": lambda _, c: discard(setattr(c.state, "own", c.update)) or {}}),
    "NumberLoss": (
        "gives a loss of type float; a scalar tensor is required, such as the mean over the samples",
        {"direction": lambda _, c: c.grad(c.theta, lambda forward: forward(c.x).logits.sum().item())},
    ),
    "LossPerSample": (
        "gives a loss of shape (",
        {"direction": lambda _, c: c.second.grad(c.theta, lambda forward: forward(c.x).logits.sum(1))},
    ),
    "OwnLossPerSample": (
        "gives a loss of shape (",
        {"loss": lambda _, forward, x, y: forward(x).logits.sum(1), "direction": lambda s, c: c.grad(c.theta, s.loss)},
    ),
    "OneTerm": (
        "gives proximal of shape (); the gradient of the term, of shape ({size},), is required",
        {"proximal": lambda _, c, theta: (theta - c.theta_0).square().sum()},
    ),
    "NumberTerm": ("gives proximal of type float; the gradient of the term, of ", {"proximal": lambda *_: 0.5}),
    "SharesRule": (
        "gives the same Heavy to several clients in local_optimizer, with what it has of the client before; return a ",
        BOUND | {"local_optimizer": lambda *_: HEAVY},
    ),
    "PassesInStep": (
        "calls c.batches within a step, whose batch it replaces; make the pass in begin, or take another batch by ",
        {"gradient": lambda _, c: discard([*c.batches("own")]) or c.grad(c.theta)},
    ),
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
    "ShortBroadcast": (f"gives a broadcast{SHORT}", {"broadcast": lambda _, server: server.theta[:-1]}),
    "ShortInitial": (f"gives an initial model{SHORT}", {"initial": lambda _, theta, layout: theta[:-1]}),
    "OneDirection": (
        "gives a direction of shape (); ({size},) is required",
        {"direction": lambda _, c: c.grad(c.theta).mean()},
    ),
    "ShortBegin": (f"sets c.theta in begin to a value{SHORT}", {"begin": lambda _, c: shorten(c)}),
    "ShortPersonal": (f"sets c.theta in prepare to a value{SHORT}", {"prepare": lambda _, c: shorten(c)}),
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
    fixed = what in ("c.theta_0", "c.update", "c.shared_update") or what.startswith("got.")  # no hook assigns these
    instead = f"{'z' if fixed else what} = {what} - v, not {what} -= v"
    CASES[name] = f"changes {what} in place, which others share; assign a new tensor instead ({instead})", members
for name, (owner, hook, members) in ASSIGNS.items():
    allowed = "aggregate" if owner == "server" else "begin, upload and prepare"
    CASES[name] = f"assigns {owner}.theta in {hook}{WHERE}({allowed} may assign {owner}.theta)", members
CASES["WritesLater"] = (
    f"changes c.theta in place in direction{WHERE}(begin, upload and prepare may assign c.theta)",
    {"direction": write_later},
)
KEPT = " in {}, and it ends with the round; what stays is {}, if {}_state begins it; what need not stay is a variable"
CASES["RemembersOnServer"] = (
    f"sets server.v{KEPT.format('aggregate', 'server.state.v', 'server')}",
    {"aggregate": lambda _, server, got: setattr(server, "v", got.update) or setattr(server, "theta", server.theta)},
)
CASES["RemembersOnClient"] = (
    f"sets c.h{KEPT.format('upload', 'c.state.h', 'client')}",
    {"upload": lambda _, c: nothing(setattr(c, "h", c.update))},
)
GENERATOR, OLD = torch.Generator().manual_seed(0), np.random.RandomState(0)
CASES["DrawsByItsOwn"] = (
    "draws from a Generator of its module, which no seed sets; draw from the global ones of torch, NumPy or Python, "
    "which the run's seed sets in each hook",
    {"direction": lambda _, c: c.grad(c.theta) * torch.rand((), generator=GENERATOR)},
)
CASES["DrawsByAnOldOne"] = (
    CASES["DrawsByItsOwn"][0].replace("Generator", "RandomState"),
    {"direction": lambda _, c: c.grad(c.theta) * OLD.rand()},
)
PATHS = {name: define(name, members) for name, (_, members) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_what_a_hook_may_not_do_is_refused_by_its_class(name: str) -> None:
    size = problem("fedavg").build_network("cpu").layout.size
    with pytest.raises(UserError) as caught:
        run(problem(PATHS[name]), InlineBackend())
    said = CASES[name][0].format(size=size, short=size - 1)
    assert str(caught.value).startswith(f"algorithm: class {name} ({HERE}:{name}) {said}")


@each(
    ({"upload": lambda _, c: setattr(c.state, "h", c.update.bfloat16()) or {}}, "its state h is of torch.bfloat"),
    ({"upload": lambda _, c: {"h": PerClient(c.update.bfloat16())}}, "h is of torch.bfloat16; "),
    ({"message": lambda _, server: Vectors(h=server.theta.bfloat16())}, "its message h is of torch.bfloat16; "),
    ({"upload": lambda _, c: setattr(c.state, "h", c.lr) or {}}, "its state h is a float; a Tensor is required"),
    ({"aggregate": lambda _, server, got: setattr(server.state, "h", 0.5)}, "server.state.h is a float; a Tensor"),
    ({"upload": lambda _, c: {"gh"[c.id % 2]: PerClient(c.update)}}, "client 0 has an upload 'g' and client 1 has"),
)
def test_numbers_that_no_other_process_could_get_are_refused(members: dict[str, Any], said: str) -> None:
    """On every backend: NumPy, and so Ray, has no bfloat16."""
    with small.refused(f"algorithm: {said}"):
        run(problem(define("Brief", members)), InlineBackend())


def test_a_step_that_the_server_learns_leaves_no_graph() -> None:
    def aggregate(_: Algorithm, server: Any, got: Any) -> None:
        server.theta = server.state.last = server.theta + (-got.update).requires_grad_().exp()

    state = run(problem(define("Learns", {"aggregate": aggregate})), InlineBackend()).state
    assert not state.theta.requires_grad | state.server["last"].requires_grad


@each(
    ({"keeps": "head"}, "has shares = 'all' and keeps = 'head', so clients would send 3.bias and then take their"),
    ({"keeps": "body", "shares": "body"}, "has shares = 'body' and keeps = 'body', so clients would send"),
    pytest.param(
        {"shares": "body", "__annotations__": {"shares": str}},
        "makes shares an option by its type",
        marks=pytest.mark.filterwarnings("ignore:Field name"),
    ),
    ({"tests_average": lambda self: True}, "tests_average is read as a property; write @property above it"),
)
def test_a_declaration_that_would_do_nothing_is_refused(members: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        run(problem(define(f"Declares{len(globals())}", members)), InlineBackend())


def test_a_model_that_aggregate_never_moves_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Once in each call, so that a notebook hears of the next class, too."""
    path = define("Forgetful", {"aggregate": lambda _, server, got: discard(got.update)})
    for calls in (1, 2):
        fedray.simulate(problem(path).config, progress=False)
        lines = [line for line in caplog.messages if line.endswith(" as it was, so the model does not move")]
        assert lines == calls * [f"{path}: aggregate leaves server.theta as it was, so the model does not move"]


class Computing(Algorithm):
    """A dictionary that is computed once, and grows, in later calls or in the first alone."""

    grows: Literal["", "always", "once"] = ""

    @cached_property
    def seen(self) -> dict[int, float]:
        return {}

    def direction(self, c: Client) -> torch.Tensor:
        if self.grows == "always" or (self.grows and not self.seen):
            self.seen[c.id] = 1.0
        return c.grad(c.theta) * (1 + len(self.seen))


class Holder:
    n = 0


class Holding(Algorithm):
    held: str
    helper: ClassVar[Holder] = Holder()
    _net: Any = PrivateAttr(default_factory=lambda: torch.nn.Linear(2, 2))

    def direction(self, c: Client) -> torch.Tensor:
        if self.held == "helper":
            self.helper.n += 1
        else:
            with torch.no_grad():
                self._net.weight.add_(1)
        return c.grad(c.theta)


def test_what_is_computed_once_may_not_change() -> None:
    run(problem(f"{HERE}:Computing"), InlineBackend())
    for grows in ("always", "once"):
        with pytest.raises(UserError, match=r"Computing\) changes its attribute seen; what changes is a state$"):
            run(problem({"name": f"{HERE}:Computing", "grows": grows}), InlineBackend())


def test_upload_may_make_a_pass_and_hooks_may_assign_theta() -> None:
    """Fisher's information, say: the pass sets c.x, c.y and c.step."""

    def upload(_: Algorithm, c: Client) -> dict[str, Sum]:
        return {"f": Sum(sum((c.grad(c.theta) ** 2 for _ in c.batches("fisher")), torch.zeros_like(c.theta)))}

    run(problem(define("Fisher", {"upload": upload})), InlineBackend())
    hooks = {"begin": lambda _, c: double(c), "upload": lambda _, c: double(c) or {}, "prepare": lambda _, c: double(c)}
    run(problem(define("AssignsTheta", hooks)), InlineBackend())


class Counting(Algorithm):
    held: str
    seen: dict[str, int] = {}

    def direction(self, c: Client) -> torch.Tensor:
        self.seen["steps"] = self.seen.get("steps", 0) + 1
        return c.grad(c.theta) / self.seen["steps"]


class Remembering(Algorithm):
    """Momentum in places that the next client of the process sees."""

    held: str
    seen: ClassVar[dict[str, torch.Tensor]] = {}
    steps: ClassVar[int] = 0
    last: ClassVar[tuple[float, ...] | None] = None
    array: ClassVar[Any] = np.zeros(5000)
    nested: ClassVar[Any] = [{"m": torch.zeros(5000, dtype=torch.bfloat16)}, np.array([None])]
    _kept: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)
    _last: float = PrivateAttr(0.0)

    def gradient(self, c: Client) -> torch.Tensor:
        g = c.grad(c.theta)
        match self.held:
            case "_kept":
                self._kept["m"] = g = 0.5 * self._kept.get("m", 0) + g
            case "_last":
                self._last = float(g.norm())
            case "seen":
                self.seen["m"] = g = 0.5 * self.seen.get("m", 0) + g
            case "steps":
                type(self).steps += 1
            case "last":
                Remembering.last = (*(Remembering.last or ()), c.lr)
            case "array":
                self.array[2500] += 1
            case "nested":
                self.nested[0]["m"][2500] += 1
        return g


HOLDING = [("Remembering", place) for place in ("_kept", "_last", "seen", "steps", "last", "array", "nested")]


@pytest.mark.parametrize(("name", "held"), [("Counting", "seen"), ("Holding", "helper"), ("Holding", "_net"), *HOLDING])
def test_an_option_or_attribute_that_a_hook_changes_is_named(name: str, held: str) -> None:
    """It would go on from client to client of a process, so that the numbers depend on how many there are."""
    changed = f"option {held}" if name == "Counting" else f"attribute {held}"
    with pytest.raises(UserError, match=rf"{name}\) changes its {changed}; what changes is a state$"):
        run(problem({"name": f"{HERE}:{name}", "held": held}), InlineBackend())


def test_a_generator_that_a_notebook_makes_anew_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell is run again after the class has served."""
    for _ in range(2):
        monkeypatch.setattr(sys.modules[HERE], "GENERATOR", torch.Generator().manual_seed(0))
        with pytest.raises(UserError, match="draws from a Generator of its module"):
            run(problem(PATHS["DrawsByItsOwn"]), InlineBackend())


@each(
    ("ReadsReceived", {"direction": descend_with(lambda c: c.theta_0)}),
    ("ReadsDetached", {"direction": descend_with(lambda c: c.theta.detach())}),
    (
        "ReadsOther",
        {"direction": lambda _, c: discard(descend_with(lambda c: c.theta, True)(_, c)) or c.grad(c.theta)},
    ),
    ("PassesCopy", {"loss": regularise, "direction": lambda self, c: c.grad(c.theta, self.loss, c.theta.clone())}),
)
def test_a_loss_may_read_constants(name: str, hooks: dict[str, Any]) -> None:
    """As a term that does not depend on the parameters they change no gradient."""
    found = [run(problem(path), InlineBackend()) for path in ("fedavg", define(name, hooks))]
    hashes = [one.summary()["theta_sha256"] for one in found]
    assert hashes[0] == hashes[1]


class UnequalUploads(Algorithm):
    """A client's number of samples as the length: PyTorch would repeat a vector of one number."""

    name = "unequal_uploads"
    each: bool = False

    def upload(self, c: Client) -> dict[str, Sum | PerClient]:
        vector = torch.ones(c.samples)
        return {"h": PerClient(vector) if self.each else Sum(vector)}


class MixedUploads(Algorithm):
    """Units of 2^-32 and 2^-44 in one integer would give 4096 for 1."""

    name = "mixed_uploads"

    def upload(self, c: Client) -> dict[str, Sum]:
        return {"h": Sum(torch.ones(2), wide=c.samples % 2 == 0)}


@each(
    ({"name": f"{HERE}:MixedUploads"}, "is a wide sum from one client and a plain one from"),
    ({"name": f"{HERE}:UnequalUploads", "each": False}, r"has shape \(\d+,\) from one client and \(\d+,\)"),
    ({"name": f"{HERE}:UnequalUploads", "each": True}, r"has shape \(\d+,\) from one client and \(\d+,\)"),
)
def test_the_uploads_of_a_name_have_one_unit_and_one_shape(method: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^algorithm: an upload 'h' {said}"):
        run(small.problem(method, (4, 4), 4, 0.5, training={"rounds": 1, "local_steps": 1}), InlineBackend())


def test_the_uploads_of_a_name_have_one_shape_in_all_processes() -> None:
    """1 and 2 numbers of two processes: PyTorch would add the one to both."""
    ones = [torch.ones(size, dtype=torch.int64) for size in (1, 2)]
    theta, buffers = torch.ones(1), torch.ones(0)
    broadcast = Broadcast(round=0, lr=0.1, theta=theta, buffers=buffers, message=Vectors(), cohort=2, measured=False)
    wide = {"h": ones[0], "h rest": ones[0]}
    for other, said in (({"h": ones[1]}, r"has shape \(1,\) from one client and \(2,\)"), (wide, "is a wide sum from")):
        with pytest.raises(UserError, match=f"'h' {said}"):
            Trained({}, broadcast, [Reply(sums={"h": ones[0]}), Reply(sums=other)], Reply(), dropped=0)


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


@pytest.mark.parametrize("name", ["update", "the rest"])
def test_an_upload_named_as_fedray_s_own_is_refused(name: str) -> None:
    own = define(f"Uploads{len(name)}", {"upload": lambda _, c: {name: Sum(c.update)}})
    with pytest.raises(UserError, match=f"^algorithm: {own}.upload gives an upload '{name}', fedray's own; rename it$"):
        run(problem(own), InlineBackend())


def test_a_state_named_as_a_kept_optimiser_s_is_refused() -> None:
    own = define("Norm", {"client_state": lambda _, theta: Vectors(optimizer_norm=theta)})
    training = {"rounds": 1, "local_steps": 1, "optimizer": "adamw", "adamw": {"state": "client"}}
    with small.refused("sets c.state.optimizer_norm, fedray's own; rename it"):
        run(small.problem(own, (4, 4), 4, training=training), InlineBackend())
