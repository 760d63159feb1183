"""Guard against slips of a method: changes of what it may not change, values of another shape or type.

A method that writes into its inputs is refused, because its numbers would vary.

What a client receives is shared with the clients that the same process trains next, and with the server. The numbers
of a method that writes `c.theta -= ...` would thus depend on the number of actors. PyTorch counts the changes of every
tensor, and a view shares the counter of its base. Two ways around it go undetected: `tensor.data`, which has its own
counter, and a tensor's NumPy array.
"""

import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Size, Tensor

from fedray.algorithms.base import Algorithm, Client, Rule, Server
from fedray.common.errors import Slip, UserError, find_nearest
from fedray.common.rng import read_generator
from fedray.common.vectors import Vectors
from fedray.components.attributes import find_changed, find_own_generators, list_attributes

TYPES = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
TYPES |= {torch.float16, torch.float32, torch.float64}
T = TypeVar("T")
Side = TypeVar("Side", Client, Server)
STEP = ("direction", "gradient", "proximal")
"""Hooks that give the direction of a step; the engine calls the first, which calls the others."""
FIXED = ("c.theta_0", "the initial parameters", "c.update", "c.shared_update")
"""Tensors that no hook assigns, besides what the server receives."""
ASSIGNING = "begin, upload and prepare"
"""The hooks of a client that may assign c.theta."""


@contextlib.contextmanager
def guard(algorithm: Algorithm, tensors: Mapping[str, Tensor], name: str, state: Vectors) -> Iterator[None]:
    """Run an algorithm's code in a block. Raises UserError if a tensor, by the method's name of it, changes.

    Also if the state, of that name, gets an entry whose name is like one that it has: a slip that would otherwise leave
    the right one as it was, without a word.
    """
    known, given = [*state], {f"{name}.{entry}": vector for entry, vector in state.items()}
    own = ":" in algorithm.name  # a user's own class: the rest takes microseconds
    options, attributes = (algorithm.model_dump(), list_attributes(algorithm)) if own else ({}, {})
    generators = {one: read_generator(one) for one in find_own_generators(type(algorithm))} if own else {}
    before = [(name, tensor, tensor._version) for name, tensor in [*tensors.items(), *given.items()]]
    try:
        yield
    except Slip as slip:
        raise UserError(f"{_name_class(algorithm)} {slip}") from None
    for changed, tensor, version in before:
        refuse_changed(algorithm, changed, tensor, version)
    for option, value in (algorithm.model_dump() if options else {}).items():
        if value != options[option]:
            raise UserError(f"{_name_class(algorithm)} changes its option {option}; what changes is a state")
    if own and (changed := find_changed(algorithm, attributes)):
        raise UserError(f"{_name_class(algorithm)} changes its attribute {changed}; what changes is a state")
    for generator in (one for one, state in generators.items() if state != read_generator(one)):
        raise UserError(
            f"{_name_class(algorithm)} draws from a {type(generator).__name__} of its module, which no seed sets; draw "
            "from the global ones of torch, NumPy or Python, which the run's seed sets in each hook"
        )
    for entry in state.keys() - {*known}:
        if near := find_nearest(entry, known):
            raise UserError(
                f"{_name_class(algorithm)} sets {name}.{entry}, which does not exist; did you mean {name}.{near}? "
                f"Otherwise let {'server' if name == 'server.state' else 'client'}_state return both"
            )


def refuse_changed(algorithm: Algorithm, name: str, tensor: Tensor, version: int) -> None:
    """Raise UserError if the tensor no longer has this version."""
    if tensor._version != version:
        new = "z" if name in FIXED or name.startswith("got.") else name
        raise UserError(
            f"{_name_class(algorithm)} changes {name} in place, which others share; assign a new tensor instead "
            f"({new} = {name} - v, not {name} -= v)"
        )


def ask(algorithm: Algorithm, hook: str, function: Callable[[Side], T], side: Side) -> T:
    """Return the value of a hook that may not change theta. Raises UserError if it does, in place or by assignment."""
    theta, version = side.theta, side.theta._version
    value = function(side)
    if side.theta is not theta or theta._version != version:
        name, places = ("server.theta", "aggregate") if isinstance(side, Server) else ("c.theta", ASSIGNING)
        does = f"assigns {name}" if side.theta is not theta else f"changes {name} in place"
        own = [one for one in STEP if hook == STEP[0] and _is_users(algorithm, one)]
        raise UserError(
            f"{_name_class(algorithm)} {does} in {' or '.join(own) or hook}, where only the value that it returns "
            f"counts; return that alone ({places} may assign {name})"
        )
    return value


def ask_server(algorithm: Algorithm, hook: str, function: Callable[[Server], T], server: Server) -> T:
    """Return the value of a hook that says what clients receive, as `ask`. Raises UserError if it assigns anything to
    the server, which no round would keep, or if the message has a type that cannot be sent.
    """
    before = {**vars(server), **{f"state.{name}": v for name, v in server.state.items()}}
    value = ask(algorithm, hook, function, server)
    for name, vector in value.items() if isinstance(value, Mapping) else ():
        refuse_type(f"its message {name}", vector)
    after = {**vars(server), **{f"state.{name}": v for name, v in server.state.items()}}
    for name in [*after, *before]:
        if name not in after or name not in before or after[name] is not before[name]:
            raise UserError(
                f"{_name_class(algorithm)} assigns server.{name} in {hook}, where only the value that it returns "
                "counts; return that alone (aggregate may assign server.state)"
            )
    return value


@contextlib.contextmanager
def refuse_lost(algorithm: Algorithm, hook: str, side: Client | Server) -> Iterator[None]:
    """Raise UserError if a user's own hook, the last of a round, leaves an attribute that no round keeps."""
    if ":" not in algorithm.name:
        yield
        return
    kept, before = {"theta", *(each.name for each in fields(side))}, {**vars(side)}
    yield
    mine = "server" if isinstance(side, Server) else "c"
    for name, value in vars(side).items():
        is_new = name not in before or before[name] is not value
        if is_new and name not in kept and not hasattr(type(side), name) and name[0] != "_":
            raise UserError(
                f"{_name_class(algorithm)} sets {mine}.{name} in {hook}, and it ends with the round; what stays is "
                f"{mine}.state.{name}, if {'server' if mine == 'server' else 'client'}_state begins it; what need "
                "not stay is a variable"
            )


def start_state(algorithm: Algorithm, hook: str, theta: Tensor) -> Vectors:
    """Return a method's vectors before the first round. Raises UserError if the hook changes the theta that it gets."""
    version = theta._version
    state = Vectors(getattr(algorithm, hook)(theta))
    if theta._version != version:
        raise UserError(
            f"{_name_class(algorithm)} changes theta in place in {hook}, which others share; return a new tensor "
            "instead (torch.zeros_like(theta), not theta.zero_())"
        )
    return state


def refuse_again(algorithm: Algorithm, hook: str, rule: Rule) -> None:
    """Raise UserError for a local optimiser that has served before: its vectors would go on from client to client."""
    held = getattr(rule, "__dict__", {})
    if "_served" in held:
        raise UserError(
            f"{_name_class(algorithm)} gives the same {type(rule).__name__} to several clients in {hook}, with what it "
            "has of the client before; return a new one in each call"
        )
    held["_served"] = True


def refuse_names(algorithm: Algorithm, side: str, names: Iterable[str], taken: Container[str]) -> None:
    """Raise UserError if a method's vectors have a name that is fedray's own. side: whose, `server` or `c`."""
    for name in names:
        if name in taken:
            raise UserError(f"{_name_class(algorithm)} sets {side}.state.{name}, fedray's own; rename it")


def let_assign(algorithm: Algorithm, hook: str, function: Callable[[Client], T], c: Client) -> T:
    """Return the value of a hook that may assign c.theta. Raises UserError if that gets another shape or type."""
    theta, version = c.theta, c.theta._version
    value = function(c)
    refuse_changed(algorithm, "c.theta", theta, version)
    refuse_other(algorithm, f"sets c.theta in {hook} to a value", c.theta, theta)
    return value


def refuse_other(algorithm: Algorithm, said: str, found: object, wanted: Tensor) -> None:
    """Raise UserError for a tensor of another shape or type than is wanted. said: what the class does with it."""
    if not isinstance(found, Tensor):
        given, required = f"type {type(found).__name__}", "Tensor"
    elif found.shape != wanted.shape:
        given, required = f"shape {tuple(found.shape)}", str(tuple(wanted.shape))
    elif found.dtype != wanted.dtype:
        given, required = f"type {found.dtype}", str(wanted.dtype)
    else:
        return
    raise UserError(f"{_name_class(algorithm)} {said} of {given}; {required} is required")


def refuse_other_logits(algorithm: Algorithm, hook: str, logits: Tensor, y: Tensor, classes: int) -> None:
    """Raise UserError unless logits have a row for each label of y `(n,)`, with a number for each class at least."""
    if logits.ndim != 2 or len(logits) != len(y) or logits.shape[1] < classes:
        raise UserError(
            f"{_name_class(algorithm)} gives {hook} of shape {tuple(logits.shape)}; {len(y), classes} is required"
        )


def detach(name: str, vector: object) -> Tensor:
    """Return a vector without a learnt step's graph, else itself (`count_bytes`). Raises UserError for no tensor."""
    if not isinstance(vector, Tensor):
        raise UserError(f"algorithm: {name} is a {type(vector).__name__}; a Tensor is required")
    return vector.detach() if vector.requires_grad else vector


def refuse_type(name: str, vector: object) -> None:
    """Raise UserError for what is no tensor, or of a type that NumPy lacks: no other process could get it."""
    if (vector := detach(name, vector)).dtype not in TYPES:
        raise UserError(f"algorithm: {name} is of {vector.dtype}; bool, integers and float16 to float64 are allowed")


def refuse_shapes(name: str, shapes: Sequence[Size], wide: Collection[bool] = ()) -> None:
    """Raise UserError if the vectors of an upload have several shapes: PyTorch would repeat the smaller ones; or if
    some are wide, in other units than the others.
    """
    if len({*wide}) > 1:
        raise UserError(f"algorithm: an upload {name!r} is a wide sum from one client and a plain one from another")
    other = next((shape for shape in shapes if shape != shapes[0]), None)
    if other is not None:
        raise UserError(
            f"algorithm: an upload {name!r} has shape {tuple(shapes[0])} from one client and {tuple(other)} from "
            "another; the same shape is required"
        )


def _name_class(algorithm: Algorithm) -> str:
    return f"algorithm: class {type(algorithm).__name__} ({algorithm.name})"


def _is_users(algorithm: Algorithm, hook: str) -> bool:
    """Return True if the user's own class defines a hook."""
    return not getattr(getattr(algorithm, hook, None), "__module__", "fedray.").startswith("fedray.")
