"""Local steps as functions of tensors, so that CUDA graphs can repeat them whole: direction and descent."""

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, cast

from torch import Tensor

from fedray.algorithms.base import Client
from fedray.algorithms.descent import Rule
from fedray.client import LocalClient
from fedray.engine.training.cuda_graph import NotRecorded, Recorder

VISIBLE = {
    "theta", "theta_0", "x", "y", "message", "state", "local", "update", "shared_update", "layout", "input_shape",
    "grad", "grad_with", "predict",
}  # fmt: skip
"""Parts of a client that a recorded step may use, besides numbers: tensors at known places, and functions of them."""
ATTRIBUTES = {
    "theta": "theta",
    "theta_0": "theta_0",
    "x": "x",
    "y": "y",
    "buffers": "received_buffers",
    "loss": "_past_loss",
    "counts": "counts",
}
"""Names of a step's tensors, and where the client has them."""
Take = Callable[[Client], None]
"""Takes one local step of a client, or of its stand-in."""


class Observed:
    """A client's stand-in during a step: notes the numbers that the step reads.

    Args:
        c: the client.
        numbers: takes them.
        strict: refuse what a recording cannot repeat.
    """

    def __init__(self, c: LocalClient, numbers: dict[str, object], strict: bool) -> None:
        self.__dict__.update(_c=c, _numbers=numbers, _strict=strict)

    def __getattr__(self, name: str) -> Any:
        c: LocalClient = self.__dict__["_c"]
        value = getattr(c, name)
        if isinstance(value, bool | int | float):
            self.__dict__["_numbers"][name] = value
        elif self.__dict__["_strict"] and name not in VISIBLE and not (name == "counts" and "counts" in vars(c)):
            raise NotRecorded(f"they use {name} of the client")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__["_strict"] and name != "theta":
            raise NotRecorded(f"they set {name} of the client")
        setattr(self.__dict__["_c"], name, value)


class RecordedSteps:
    """The local steps of one client, taken by a recorder.

    Args:
        recorder: of the process.
        c: the client, after `begin`.
        rule: its local optimiser.
        name: of the method, for messages.
    """

    def __init__(self, recorder: Recorder, c: LocalClient, rule: Rule, name: str) -> None:
        self.name, self.numbers, self.passes = name, dict[str, object](), Counter[str]()
        self._recorder, self._c = recorder, c
        buffers = [b for b in c.network.module.buffers() if not b.is_floating_point()]
        self.fixed: Sequence[Tensor] = [c.network.buffers, *buffers]
        rules = _list_rules(rule)
        named: list[tuple[str, MutableMapping[str, Any]]] = [
            ("message", c.message),
            ("state", c.state),
            ("local", c.local),
        ]
        named += [(f"rule {k} state", one.state) for k, one in enumerate(rules)]
        named += [(f"rule {k}", vars(one)) for k, one in enumerate(rules)]
        self._holders: dict[str, MutableMapping[str, Any]] = {}
        for prefix, holder in named:
            if not any(holder is one for one in self._holders.values()):
                self._holders[prefix] = holder

    def take(self, kind: object, take: Take) -> None:
        """Take a step. kind: what it depends on besides tensors and numbers of the client."""
        self._take = take
        numbers = tuple(
            (prefix, name, value)
            for prefix, holder in self._holders.items()
            for name, value in holder.items()
            if isinstance(value, bool | int | float)
        )
        vectors, passes = self._recorder.take((kind, numbers), self)
        self._bind(vectors)
        self._c.passes.update(passes)

    def take_eagerly(self, take: Take) -> None:
        """Take a step without a recording, between recorded ones."""
        self._take = take
        self._bind(self._recorder.take_eagerly(self, self.list_vectors()))
        self._c.passes.update(self.passes)

    def leave(self) -> None:
        """Give the client tensors of its own, once all steps are taken."""
        vectors = self.list_vectors()
        self._bind({name: v.clone() for name, v in vectors.items() if self._recorder.is_static(v)})

    def list_vectors(self) -> dict[str, Tensor]:
        c = self._c
        c._past_loss, c._step_loss = c.loss, None
        found = {name: getattr(c, place) for name, place in ATTRIBUTES.items() if place in vars(c)}
        for prefix, holder in self._holders.items():
            found |= {f"{prefix}.{name}": v for name, v in holder.items() if isinstance(v, Tensor)}
        return found

    def run(self, vectors: Mapping[str, Tensor], recorded: bool) -> dict[str, Tensor]:
        c = self._c
        for prefix, holder in self._holders.items():  # a step that was taken in vain may have added some
            for name in [name for name, v in holder.items() if isinstance(v, Tensor)]:
                if f"{prefix}.{name}" not in vectors:
                    del holder[name]
        self._bind(vectors)
        self.numbers, passes = {}, Counter(c.passes)
        others = self._list_others()
        self._take(cast(Client, Observed(c, self.numbers, recorded)))
        self.passes, c.passes = c.passes - passes, passes
        after = self.list_vectors()
        if recorded and (not vectors.keys() <= after.keys() or self._list_others() != others):
            raise NotRecorded("they change more than tensors")
        return {name: v for name, v in after.items() if v is not vectors.get(name)}

    def read(self, name: str) -> object:
        return getattr(self._c, name)

    def _list_others(self) -> dict[tuple[str, str], int]:
        """Return what the holders hold besides tensors, by identity."""
        return {
            (prefix, name): id(value)
            for prefix, holder in self._holders.items()
            for name, value in holder.items()
            if not isinstance(value, Tensor)
        }

    def _bind(self, vectors: Mapping[str, Tensor]) -> None:
        """Make these the client's tensors, before a step or after it."""
        c = self._c
        c._update = c._shared = c._step_loss = None  # what follows from the former tensors
        c._passes, c._plain_seen, c._draws = 0, False, 0
        for name, v in vectors.items():
            prefix, _, rest = name.partition(".")
            if rest:
                self._holders[prefix][rest] = v
            elif name in ATTRIBUTES:
                setattr(c, ATTRIBUTES[name], v)


def _list_rules(rule: Rule) -> list[Rule]:
    """Return a local optimiser and those that it is made of."""
    return [rule, *(inner for part in vars(rule).values() if isinstance(part, Rule) for inner in _list_rules(part))]
