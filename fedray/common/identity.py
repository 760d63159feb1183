"""What identifies a cell: which fields of a configuration enter its hash. Each field declares this itself.

A finished cell is found again by its hash, so a hash must stay for as long as the numbers stay. Every field of a
section, algorithm, model, partition or probe enters the identity, with these exceptions:

- A field that came after cells had been hashed is marked `Later()`. It enters only where its value differs from its
  first value, which is the field's default unless you name another:

      warmup: Annotated[int, Later()] = Field(0, ge=0, description="rounds of a rising learning rate")
      restart: Annotated[bool, Later(first=False)] = Field(True, description="the default changed after its release")

- A field that cannot change a number (scheduling, paths) is marked `EXCLUDED` and never enters:

      actors: Annotated[int, EXCLUDED] = Field(1, gt=0)

- Where a component's numbers were wrong, correct them and raise the class attribute `revision` of that component (or
  section) from 0 to 1. It enters only where it is not 0, so that only the cells of that component get new hashes.
  Where only some options gave wrong numbers, make `revision` a property that says which:

      @property
      def revision(self) -> int:  # type: ignore[override]
          return int(self.variates == "samples")

  Where the run decides as well (its model, its training, its evaluation), override `revision_in`, which is told by a
  `Run`.

The options of data sets do not enter: the arrays do, by `Dataset.digest`. A class given as `package.module:Class`
enters with a digest of the source of its module. `tests/test_config.py` holds cells that commit 2f53a38 hashed.
"""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedray.common.errors import UserError


@dataclass(frozen=True)
class Later:
    """Marks a field that came after cells had been hashed: it enters an identity only where it is not `first`."""

    first: Any = PydanticUndefined
    """The value that leaves the identity as it was before the field existed; default: the field's default."""


@dataclass(frozen=True)
class Run:
    """What a method or a probe cannot know by itself of the run that it is part of.

    Attributes:
        tracks_statistics: the model has running statistics.
        fine_tunes: personal models are tested after epochs of fine-tuning.
        plain: local training has neither clipping, weight decay nor momentum.
        decays_within: the learning rate decays within a round.
    """

    tracks_statistics: bool
    fine_tunes: bool
    plain: bool
    decays_within: bool


class Excluded:
    """Marks a field that never enters an identity."""


EXCLUDED = Excluded()


def enters(field: FieldInfo, value: Any) -> bool:
    """Whether a field with this value is part of the identity."""
    for mark in field.metadata:
        if isinstance(mark, Excluded):
            return False
        if isinstance(mark, Later):
            return bool(value != (field.get_default() if mark.first is PydanticUndefined else mark.first))
    return True


def nested(value: Any, written: Any) -> Any:
    """The identity of a field's value. `written`: the same value as a configuration holds it, in JSON types."""
    if hasattr(value, "identity_entries"):
        return value.identity_entries(written) if isinstance(written, Mapping) else written
    if isinstance(value, tuple | list):
        return [nested(one, as_json) for one, as_json in zip(value, written, strict=True)]
    if isinstance(value, Mapping):
        return {key: nested(value[key], written[key]) for key in value}
    return written


def source_digest(section: str, path: str) -> str:
    """SHA-256 of the source of the module that defines `package.module:Class`.

    Raises:
        UserError: The source cannot be read, so no cell could tell when it changes.
    """
    try:
        source = inspect.getsource(importlib.import_module(path.partition(":")[0]))
    except (ImportError, OSError, TypeError):  # a notebook, the prompt, a module without a .py file
        raise UserError(
            f"{section}.name: the source of {path} cannot be read, so a cell cannot tell when it changes; "
            "put the class in a .py file"
        ) from None
    return hashlib.sha256(source.encode()).hexdigest()
