"""A method that changes what it may not, or gives another shape, is refused in one line that names its class."""

import pytest
import torch

from fedray.algorithms.base import Algorithm, Client, Finetuning, PerClient, Proximal, Received, Server, Sum, Vectors
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.probing import Trained
from fedray.models.network import Output
from tests import small

HERE = "tests.engine.test_guard"


class WritesTheta(Algorithm):
    """A proximal step that moves the received parameters themselves."""

    name = "writes_theta"

    def begin(self, c: Client) -> None:
        c.theta -= 0.01 * c.theta


class WritesLater(Algorithm):
    """In the second step: no other client shares this theta, but `c.update` would be that of another."""

    name = "writes_later"

    def direction(self, c: Client) -> torch.Tensor:
        if c.step == 1:
            c.theta.mul_(0.5)
        return c.grad(c.theta)


class WritesMessage(Algorithm):
    """A message that each client halves in place."""

    name = "writes_message"

    def message(self, server: Server) -> Vectors:
        return Vectors(delta=torch.ones(3))

    def begin(self, c: Client) -> None:
        c.message.delta /= 2


class WritesState(Algorithm):
    """A counter that is incremented in place."""

    name = "writes_state"

    def client_state(self, theta: torch.Tensor) -> Vectors:
        return Vectors(count=torch.zeros(1))

    def upload(self, c: Client) -> dict[str, Sum]:
        c.state.count += 1
        return {}


class WritesView(Algorithm):
    """Through a view of the received parameters: views share the count of changes."""

    name = "writes_view"

    def upload(self, c: Client) -> dict[str, Sum]:
        c.theta_0[:3].zero_()
        return {}


class WritesServer(Algorithm):
    """The step of the server, in place: the state of the round before would change with it."""

    name = "writes_server"

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta += got.update


class WritesInMessage(Algorithm):
    """What `message` returns is of the round; the state is of all rounds."""

    name = "writes_in_message"

    def server_state(self, theta: torch.Tensor) -> Vectors:
        return Vectors(delta=torch.ones(3))

    def message(self, server: Server) -> Vectors:
        return Vectors(delta=server.state.delta.mul_(0.5))


class WritesWhenTested(Algorithm):
    """Only the personal model's preparation writes."""

    name = "writes_when_tested"

    def prepare(self, c: Client) -> None:
        c.theta_0.zero_()


class AssignsMessage(Algorithm):
    """Each client assigns another message to itself, which affects no other client."""

    name = "assigns_message"

    def message(self, server: Server) -> Vectors:
        return Vectors(delta=torch.ones(1))

    def direction(self, c: Client) -> torch.Tensor:
        c.message.delta = c.message.delta * 0.5
        return c.grad(c.theta) * c.message.delta


def problem(kind: type[Algorithm]) -> Problem:
    return small.problem(
        f"{HERE}:{kind.__name__}",
        (4, 4),
        4,
        evaluation={"every": 1, "personal": {"epochs": 1}},
        training={"rounds": 1, "local_steps": 3, "clip_scope": "code"},
    )


WRITES = [
    (WritesTheta, "c.theta"),
    (WritesMessage, "c.message.delta"),
    (WritesState, "c.state.count"),
    (WritesView, "c.theta_0"),
    (WritesServer, "server.theta"),
    (WritesInMessage, "server.state.delta"),
    (WritesWhenTested, "c.theta_0"),
]


@pytest.mark.parametrize(("kind", "what"), WRITES)
def test_a_change_in_place_is_refused_by_the_class_that_makes_it(kind: type[Algorithm], what: str) -> None:
    with pytest.raises(UserError) as caught:
        run(problem(kind), InlineBackend())
    new = "z" if what == "c.theta_0" else what  # which no hook assigns
    assert str(caught.value) == (
        f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) changes {what} in place, which others share; "
        f"assign a new tensor instead ({new} = {what} - v, not {what} -= v)"
    )


def step(c: Client) -> None:
    """A step of the method's own, where fedray makes the step."""
    c.theta = c.theta - 0.1 * c.grad(c.theta)


class StepsInDirection(Algorithm):
    """Its numbers would be those of two steps."""

    name = "steps_in_direction"

    def direction(self, c: Client) -> torch.Tensor:
        step(c)
        return c.grad(c.theta)


class StepsInGradient(Algorithm):
    """The same in the hook that `direction` calls."""

    name = "steps_in_gradient"
    gradient = StepsInDirection.direction


class StepsInProximal(Proximal):
    """The same in the hook of a base class."""

    name = "steps_in_proximal"

    def proximal(self, c: Client, theta: torch.Tensor) -> torch.Tensor:
        step(c)
        return theta - c.theta_0


class StepsInRate(Algorithm):
    """The step would have been lost: y is read before η."""

    name = "steps_in_rate"

    def rate(self, c: Client) -> float:
        step(c)
        return c.lr


class StepsInPart(Algorithm):
    """Before the direction."""

    name = "steps_in_part"

    def trained_part(self, c: Client) -> str:  # type: ignore[override]
        step(c)
        return "all"


class StepsInOptimizer(Algorithm):
    """Before the first step."""

    name = "steps_in_optimizer"
    bound_to_sgd = "has an optimiser of its own"

    def local_optimizer(self, c: Client) -> None:
        c.theta = 2 * c.theta


class StepsInWeight(Algorithm):
    """With `clip_scope: code`."""

    name = "steps_in_weight"

    def decoupled_weight(self, c: Client) -> float:
        c.theta = 2 * c.theta
        return 0.0


class StepsWhenTuned(Algorithm):
    """A direction of fine-tuning alone."""

    name = "steps_when_tuned"

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(direction=lambda c: StepsInDirection().direction(c))


class StepsInLogits(Algorithm):
    """The next batch would be answered by another model."""

    name = "steps_in_logits"

    def personal_logits(self, c: Client) -> torch.Tensor:
        c.theta = 2 * c.theta
        return c.predict(c.theta).logits


class AggregatesInMessage(Algorithm):
    """Lost: the server of `message` is a copy."""

    name = "aggregates_in_message"

    def message(self, server: Server) -> Vectors:
        server.theta = 2 * server.theta
        return Vectors()


class AggregatesInStep(Algorithm):
    """`aggregate` would add the update to it."""

    name = "aggregates_in_step"

    def server_step(self, server: Server, got: Received) -> float:
        server.theta = server.theta + got.update
        return 1.0


STEPS: list[tuple[type[Algorithm], str]] = [
    (WritesLater, "changes c.theta in place in direction"),
    (StepsInDirection, "assigns c.theta in direction"),
    (StepsInGradient, "assigns c.theta in gradient"),
    (StepsInProximal, "assigns c.theta in proximal"),
    (StepsInRate, "assigns c.theta in rate"),
    (StepsInPart, "assigns c.theta in trained_part"),
    (StepsInOptimizer, "assigns c.theta in local_optimizer"),
    (StepsInWeight, "assigns c.theta in decoupled_weight"),
    (StepsWhenTuned, "assigns c.theta in direction"),
    (StepsInLogits, "assigns c.theta in personal_logits"),
    (AggregatesInMessage, "assigns server.theta in message"),
    (AggregatesInStep, "assigns server.theta in server_step"),
]


@pytest.mark.parametrize(("kind", "does"), STEPS)
def test_a_hook_whose_value_counts_leaves_theta_as_it_is(kind: type[Algorithm], does: str) -> None:
    with pytest.raises(UserError) as caught:
        run(problem(kind), InlineBackend())
    may = "aggregate may assign server.theta" if "server" in does else "begin, upload and prepare may assign c.theta"
    assert str(caught.value) == (
        f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) {does}, where only the value that it returns "
        f"counts; return that alone ({may})"
    )


class AssignsTheta(Algorithm):
    """Halves y before the first step and after the last one, and the personal model."""

    name = "assigns_theta"

    def begin(self, c: Client) -> None:
        c.theta = 0.5 * c.theta

    def upload(self, c: Client) -> dict[str, Sum]:
        c.theta = 0.5 * c.theta
        return {}

    prepare = begin


def test_begin_upload_and_prepare_may_assign_theta() -> None:
    run(problem(AssignsTheta), InlineBackend())


class MisspellsState(Algorithm):
    """An entry of the client's state that nothing reads: the right one stays 0."""

    name = "misspells_state"

    def client_state(self, theta: torch.Tensor) -> Vectors:
        return Vectors(velocity=torch.zeros(1))

    def upload(self, c: Client) -> dict[str, Sum]:
        c.state.velocty = c.state.velocity + 1
        return {}


class MisspellsServer(Algorithm):
    """The same on the server."""

    name = "misspells_server"

    def server_state(self, theta: torch.Tensor) -> Vectors:
        return Vectors(d=torch.zeros(1))

    def aggregate(self, server: Server, got: Received) -> None:
        server.state.dd = server.state.d + 1


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (MisspellsState, "sets c.state.velocty, which does not exist; did you mean c.state.velocity? "),
        (MisspellsServer, "sets server.state.dd, which does not exist; did you mean server.state.d? "),
    ],
)
def test_a_misspelt_entry_of_the_state_is_refused(kind: type[Algorithm], says: str) -> None:
    with pytest.raises(UserError) as caught:
        run(problem(kind), InlineBackend())
    assert str(caught.value).startswith(f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) {says}")


class OneNumber(Algorithm):
    """PyTorch would subtract it from every parameter."""

    name = "one_number"

    def direction(self, c: Client) -> torch.Tensor:
        return c.grad(c.theta).mean()


class TooShort(Algorithm):
    """PyTorch's own message names neither the method nor the direction."""

    name = "too_short"

    def direction(self, c: Client) -> torch.Tensor:
        return c.grad(c.theta)[:3]


@pytest.mark.parametrize(("kind", "shape"), [(OneNumber, ()), (TooShort, (3,))])
def test_a_direction_has_a_number_for_each_parameter(kind: type[Algorithm], shape: tuple[int, ...]) -> None:
    made = problem(kind)
    size = made.build_network("cpu").layout.size
    with pytest.raises(UserError) as caught:
        run(made, InlineBackend())
    assert str(caught.value) == (
        f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) gives a direction of shape {shape}; ({size},) is "
        "required"
    )


class ShortServer(Algorithm):
    """PyTorch's own message comes a hook later, from fedray's file."""

    name = "short_server"

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = (server.theta + got.update)[:-1]


class DoubleServer(Algorithm):
    """Every later vector would be float64."""

    name = "double_server"

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta.double()


class NoServer(Algorithm):
    """No tensor at all."""

    name = "no_server"

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = None  # type: ignore[assignment]


class ShortBroadcast(Algorithm):
    """What clients start from."""

    name = "short_broadcast"

    def broadcast(self, server: Server) -> torch.Tensor:
        return server.theta[:-1]


class ShortInitial(Algorithm):
    """x⁰."""

    name = "short_initial"

    def initial(self, theta: torch.Tensor, layout: object) -> torch.Tensor:
        return theta[:-1]


class DoubleDirection(Algorithm):
    """y would be float64."""

    name = "double_direction"

    def direction(self, c: Client) -> torch.Tensor:
        return c.grad(c.theta).double()


class ShortBegin(Algorithm):
    """y before the first step."""

    name = "short_begin"

    def begin(self, c: Client) -> None:
        c.theta = c.theta[:-1]


class ShortUpload(Algorithm):
    """y after the last step."""

    name = "short_upload"

    def upload(self, c: Client) -> dict[str, Sum]:
        c.theta = c.theta[:-1]
        return {}


class ShortPersonal(Algorithm):
    """A personal model."""

    name = "short_personal"
    prepare = ShortBegin.begin


class ShortOwn(Algorithm):
    """The parameters of a client without a state."""

    name = "short_own"
    keeps = "all"
    shares = "none"
    personal = "kept"

    def newcomers_own(self, initial: torch.Tensor, message: Vectors) -> torch.Tensor:
        return initial[:-1]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ShortServer, "sets server.theta in aggregate to a value of shape ({short},); ({size},) is required"),
        (DoubleServer, "sets server.theta in aggregate to a value of type torch.float64; torch.float32 is required"),
        (NoServer, "sets server.theta in aggregate to a value of type NoneType; Tensor is required"),
        (ShortBroadcast, "gives a broadcast of shape ({short},); ({size},) is required"),
        (ShortInitial, "gives an initial model of shape ({short},); ({size},) is required"),
        (DoubleDirection, "gives a direction of type torch.float64; torch.float32 is required"),
        (ShortBegin, "sets c.theta in begin to a value of shape ({short},); ({size},) is required"),
        (ShortUpload, "sets c.theta in upload to a value of shape ({short},); ({size},) is required"),
        (ShortPersonal, "sets c.theta in prepare to a value of shape ({short},); ({size},) is required"),
        (ShortOwn, "gives newcomers_own of shape ({short},); ({size},) is required"),
    ],
)
def test_what_a_hook_makes_has_the_shape_and_type_of_the_parameters(kind: type[Algorithm], says: str) -> None:
    size = problem(AssignsTheta).build_network("cpu").layout.size
    with pytest.raises(UserError) as caught:
        run(problem(kind), InlineBackend())
    said = says.format(size=size, short=size - 1)
    assert str(caught.value) == f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) {said}"


class OneLogit(Algorithm):
    """The logits of one sample for all."""

    name = "one_logit"

    def logits(self, output: Output) -> torch.Tensor:
        return output.logits[:1]


class FlatLogits(Algorithm):
    """The same of the personal model, without its rows."""

    name = "flat_logits"

    def personal_logits(self, c: Client) -> torch.Tensor:
        return c.predict(c.theta).logits.flatten()


@pytest.mark.parametrize(("kind", "hook"), [(OneLogit, "logits"), (FlatLogits, "personal_logits")])
def test_logits_have_a_row_for_each_sample_and_a_column_for_each_class(kind: type[Algorithm], hook: str) -> None:
    with pytest.raises(
        UserError, match=rf"class {kind.__name__} .* gives {hook} of shape .*; \(\d+, 10\) is required$"
    ):
        run(problem(kind), InlineBackend())


class UnequalUploads(Algorithm):
    """A client's number of samples as the length: PyTorch would repeat a vector of one number."""

    name = "unequal_uploads"
    each: bool = False

    def upload(self, c: Client) -> dict[str, Sum | PerClient]:
        vector = torch.ones(c.samples)
        return {"h": PerClient(vector) if self.each else Sum(vector)}


@pytest.mark.parametrize("each", [False, True])
def test_the_uploads_of_a_name_have_one_shape(each: bool) -> None:
    made = small.problem(
        {"name": f"{HERE}:UnequalUploads", "each": each}, (4, 4), 4, 0.5, training={"rounds": 1, "local_steps": 1}
    )
    with pytest.raises(UserError, match=r"^algorithm: an upload 'h' has shape \(\d+,\) from one client and \(\d+,\)"):
        run(made, InlineBackend())


def test_the_uploads_of_a_name_have_one_shape_in_all_processes() -> None:
    """1 and 2 numbers of two processes: PyTorch would add the one to both."""
    parts = [Reply(sums={"h": torch.ones(size, dtype=torch.int64)}) for size in (1, 2)]
    broadcast = Broadcast(
        round=0, lr=0.1, theta=torch.ones(1), buffers=torch.ones(0), message=Vectors(), cohort=2, measured=False
    )
    with pytest.raises(UserError, match=r"'h' has shape \(1,\) from one client and \(2,\) from another"):
        Trained({}, broadcast, parts, Reply(), dropped=0)


def test_assigning_to_the_message_reaches_no_other_client() -> None:
    """Each client's three steps see 1/2, 1/4, 1/8, in any order of training."""
    ordered, reversed_order = problem(AssignsMessage), InlineBackend()
    train = reversed_order.train
    reversed_order.train = lambda broadcast, tasks: train(broadcast, tasks[::-1])  # type: ignore[method-assign]
    found = [run(ordered, backend).summary()["theta_sha256"] for backend in (InlineBackend(), reversed_order)]
    assert found[0] == found[1]


class UploadsTensor(Algorithm):
    """Returns no weight."""

    name = "uploads_tensor"

    def upload(self, c: Client) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"mine": c.update}


class UploadsUpdate(Algorithm):
    """A second upload of a name that the engine gives to the first."""

    name = "uploads_update"

    def upload(self, c: Client) -> dict[str, Sum]:
        return {"update": Sum(c.update)}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (UploadsTensor, r"UploadsTensor.upload returns \{'mine': tensor\(.*; Mapping\[str, .*\] is required"),
        (UploadsUpdate, "UploadsUpdate.upload gives an upload 'update', fedray's own; rename it"),
    ],
)
def test_an_upload_that_cannot_be_reduced_is_refused(kind: type[Algorithm], message: str) -> None:
    with pytest.raises(UserError, match=f"^algorithm: {HERE}:{message}$"):
        run(problem(kind), InlineBackend())
