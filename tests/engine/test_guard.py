"""A method that writes into its inputs is refused in one line that names its class."""

import pytest
import torch

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Vectors
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
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
        training={"rounds": 1, "local_steps": 3},
    )


WRITES = [
    (WritesTheta, "c.theta_0"),
    (WritesLater, "c.theta"),
    (WritesMessage, "c.message.delta"),
    (WritesState, "c.state.count"),
    (WritesView, "c.theta_0"),
    (WritesServer, "server.theta"),
    (WritesWhenTested, "c.theta_0"),
]


@pytest.mark.parametrize(("kind", "what"), WRITES)
def test_a_change_in_place_is_refused_by_the_class_that_makes_it(kind: type[Algorithm], what: str) -> None:
    with pytest.raises(UserError) as caught:
        run(problem(kind), InlineBackend())
    assert str(caught.value) == (
        f"algorithm: class {kind.__name__} ({HERE}:{kind.__name__}) changes {what} in place, which others share; "
        f"assign a new tensor instead ({what} = {what} - v, not {what} -= v)"
    )


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
