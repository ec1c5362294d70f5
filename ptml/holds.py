"""Holds: what keeps a training step, or a part of one, from being written.

A hold is a verdict, a scalar boolean graph: where it is true, what the hold covers keeps the value that it
has. There are two kinds. A guard's covers the whole step: every slot that the program writes, the statistics
of the model and the clocks of rules included, and spares random keys, counts of skips, and clocks that are
nobody's but the user's. A window's, of gradients that are gathered, covers what the transforms behind it
write, and their clocks.

A hold travels in the graph: each new value that is under it is marked by a `Held` op, so that it is not lost
where updates are joined, copied or pickled. The compile step, which alone knows all that a program writes,
finds the marks and applies each hold to all that it covers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml_state import Role, Slot, SlotVariable

__all__ = ["Held", "Hold", "Written", "marked"]

_ordinals = itertools.count()


@attrs.frozen(eq=False, repr=False)
class Hold:
    """A verdict on what a step writes.

    Attributes
    ----------
    when : scalar Variable, bool
        Whether what is covered keeps the value that it has.
    whole : bool
        Whether it covers the whole step.
    spared : tuple of Slot
        What no hold covers: counts of skipped steps.
    clocks : dict of Slot to None
        The clocks that a hold which is not whole covers.
    ordinal : int
        Holds are applied in order, those of inner guards first.
    """

    when: TensorVariable
    whole: bool = False
    spared: tuple[Slot, ...] = ()
    clocks: dict[Slot, None] = attrs.field(init=False, factory=dict)
    ordinal: int = attrs.field(init=False, factory=_ordinals.__next__)

    def covers(self, slot: Slot, marked_by: Iterable[Hold]) -> bool:
        """Say whether the hold is on what is written to a slot.

        Parameters
        ----------
        slot : Slot
        marked_by : iterable of Hold
            The holds that mark its new value.
        """
        if not self.whole:
            return self in marked_by or slot in self.clocks
        nobodys = slot.role is Role.CLOCK and slot.owner is None
        return slot.role is not Role.GENERATOR and not nobodys

    def or_nothing(self, amount: TensorVariable) -> TensorVariable:
        """Give an amount to add, or one that changes nothing where it is held back."""
        # To add -0.0 changes no number; 0.0 would make a zero of -0.0.
        return pt.switch(self.when, pt.constant(np.asarray(-0.0, amount.dtype)), amount)

    def __repr__(self) -> str:
        return f"<Hold on {'the whole step' if self.whole else 'what is behind a window'}>"


class Held(Op):
    """Give the first input, a new value; or the second, which it replaces, where the third is true."""

    __props__ = ("hold",)

    def __init__(self, hold: Hold) -> None:
        self.hold = hold

    def make_node(self, new: Variable, old: Variable, when: Variable) -> Apply:
        return Apply(self, [new, old, when], [pt.switch(when, old, new).type()])

    def perform(self, node: Apply, inputs: list[Any], outputs: list[list[Any]]) -> None:
        new, old, when = inputs
        outputs[0][0] = np.asarray(old if when else new, node.outputs[0].type.dtype)

    def __str__(self) -> str:
        return "Held"


def marked(handle: SlotVariable, new: TensorVariable, holds: Iterable[Hold]) -> TensorVariable:
    """Mark a slot's new value as under holds, from the first to the last."""
    for hold in holds:
        new = Held(hold)(new, handle, hold.when)
    return new


class Written(TensorVariable):
    """A root of the graph that stands for an answer about all that the program would write: ``bool[]``.

    Parameters
    ----------
    ask : function
        ``ask({slot: new value}) -> scalar bool``. What depends on the answer itself is not among the values.

    Examples
    --------
    >>> Written(lambda values: len(values) > 3)
    Written
    """

    def __init__(self, ask: Callable[[Mapping[Slot, Variable]], TensorVariable]) -> None:
        super().__init__(TensorType("bool", ()), None, None, name=None)
        self.ask = ask

    def clone(self, **kwargs: Any) -> Written:
        return self

    def __copy__(self) -> Written:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Written:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Written, (self.ask,)

    def __str__(self) -> str:
        return "Written"

    __repr__ = __str__
