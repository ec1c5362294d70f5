"""Applications: graph roots that stand for what one use of a slot reads.

Where a slot moves between its uses in one graph, the uses must be told apart: the second batch norm
reads what the first wrote, and the second dropout draws another mask than the first. Each use has a root
of its own here. Roots travel through nested graphs, loops, gradients and copies by themselves, so every
copy of a use means the same use; the compile step puts the right value in the place of each.
"""

from __future__ import annotations

import itertools
import uuid
import weakref
from typing import Any

import numpy as np
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml_state import Slot

__all__ = ["Application", "DrawNumber", "Reading", "next_ordinal", "restored_ordinal"]

_ordinals = itertools.count()
_live: weakref.WeakValueDictionary[str, Application] = weakref.WeakValueDictionary()


def next_ordinal() -> int:
    """Number calls and uses in the order in which they are made."""
    return next(_ordinals)


def restored_ordinal(ordinal: int) -> int:
    """Give a number that comes from a pickle back, and number what is made from now on higher."""
    while next(_ordinals) < ordinal:
        pass
    return ordinal


class Application(TensorVariable):
    """A root of the graph that stands for what one use of a slot reads.

    Parameters
    ----------
    slot : Slot
        The slot in use.
    """

    def __init__(self, slot: Slot, type: TensorType, uid: str | None = None) -> None:
        super().__init__(type, None, None, name=None)
        self.slot = slot
        self.ordinal = next_ordinal()
        self.uid = uid or uuid.uuid4().hex
        _live[self.uid] = self

    def clone(self, **kwargs: Any) -> Application:
        return self

    def __copy__(self) -> Application:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Application:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.slot, self.uid, self.ordinal)

    def __str__(self) -> str:
        return f"{self.slot.address}#{self.use} [slot: needs ptml.function]"

    use = "use"


class Reading(Application):
    """What one application of a layer reads of a statistic."""

    use = "reading"

    def __init__(self, slot: Slot, uid: str | None = None) -> None:
        super().__init__(slot, slot.type, uid)


class DrawNumber(Application):
    """The number of one draw among those of its generator: ``uint32[]``."""

    use = "draw"

    def __init__(self, slot: Slot, uid: str | None = None) -> None:
        super().__init__(slot, TensorType(np.dtype("uint32"), ()), uid)


def _restore(kind: type[Any], slot: Slot, uid: str, ordinal: int) -> Application:
    living = _live.get(uid)
    if living is not None:
        return living
    made = kind(slot, uid)
    made.ordinal = restored_ordinal(ordinal)
    return made
