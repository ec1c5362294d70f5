"""Decoding: what layers do differently in a program that takes a sequence piece by piece.

While a decoder is built, a `Decoding` says so to every layer that is called. Layers that look along a
sequence then continue where the last piece ended: attention appends keys and values to its caches, and
positions count on. The caches are slots, and move by themselves, as running statistics do in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml.initializers import Zeros
from ptml_state import Role, Slot, SlotVariable

__all__ = ["Appended", "Decoding", "decoding", "numbered"]


def numbered(length: Any) -> TensorVariable:
    """Give the integers from 0 up to a length, also where that is known when the graph runs."""
    if isinstance(length, int):
        return pt.constant(np.arange(length))
    # MLX has an arange of numbers alone. Its arrays may have a shape that the graph computes.
    return pt.cumsum(pt.alloc(np.int64(1), length)) - 1


@attrs.frozen
class Appended:
    """Keys and values, the new ones in their places, and what moves.

    Attributes
    ----------
    keys, values : tensor, (batch, heads, length, features)
    moves : mapping
        From the caches' handles to their new values, for :func:`ptml.advance`.
    """

    keys: TensorVariable
    values: TensorVariable
    moves: Mapping[SlotVariable, TensorVariable]


@attrs.frozen(eq=False)
class Decoding:
    """How a decoder is built: the sizes of its caches, and where each example of the batch stands.

    Parameters
    ----------
    batch : int
        The number of examples that are decoded side by side.
    length : int
        How many positions the caches hold.
    namespace : str
        The first part of the addresses of the caches.
    name_of : callable
        From a layer to its name in the network.
    known : mapping
        Slots that there are already, by address.
    """

    batch: int
    length: int
    namespace: str = "cache"
    name_of: Callable[[Any], str] = attrs.field(default=lambda layer: layer.name, repr=False)
    known: Mapping[str, Slot] = attrs.field(factory=dict, repr=False)
    #: Stands, in the graph, for the number of positions that each example has behind it.
    position: TensorVariable = attrs.field(init=False, repr=False)
    #: The slots of the caches, by address.
    slots: dict[str, Slot] = attrs.field(init=False, factory=dict, repr=False)
    _calls: Counter[str] = attrs.field(init=False, factory=Counter, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "position", TensorType("int64", (self.batch,))(name="position"))

    def slot(self, name: str, dtype: str, shape: tuple[int, ...]) -> SlotVariable:
        """Give the handle of a slot that starts at zero, the one known where there is one of this type."""
        address = f"{self.namespace}/{name}"
        slot = self.known.get(address)
        if slot is None or (slot.dtype, slot.shape) != (dtype, shape):
            slot = Slot(address, Role.CACHE, dtype, shape, Zeros(), owner=self)
        self.slots[address] = slot
        return slot.handle

    def positions(self, n: Any) -> TensorVariable:
        """Give the positions of the next n of each example, ``(batch, n)``."""
        # What would come after the end is refused, but by some backends only once it has been computed.
        return pt.minimum(self.position[:, None] + numbered(n)[None, :], np.int64(self.length - 1))

    def visible(self, n: Any) -> TensorVariable:
        """Say which of the cached positions each of the next n may attend to, ``(batch, 1, n, length)``."""
        cached = np.arange(self.length)[None, None, None, :]
        return pt.le(cached, self.positions(n)[:, None, :, None])

    def append(self, layer: Any, keys: TensorVariable, values: TensorVariable) -> Appended:
        """Put the next keys and values of a layer's call behind those that its caches hold.

        Parameters
        ----------
        layer : Layer
            Whose they are. Every call of a layer has caches of its own.
        keys, values : tensor, (batch, heads, time, features)
        """
        name = self.name_of(layer)
        self._calls[name] += 1
        if self._calls[name] > 1:
            name = f"{name}_{self._calls[name]}"
        pairs = [
            (self._appended(f"{what}/{name}", new)) for what, new in (("keys", keys), ("values", values))
        ]
        (old_keys, all_keys), (old_values, all_values) = pairs
        return Appended(all_keys, all_values, {old_keys: all_keys, old_values: all_values})

    def _appended(self, name: str, new: TensorVariable) -> tuple[SlotVariable, TensorVariable]:
        _, heads, time, features = new.type.shape
        assert heads is not None  # the layer's own, as are its features
        assert features is not None
        cache = self.slot(name, new.type.dtype, (self.batch, heads, self.length, features))
        at = self.positions(new.shape[2] if time is None else time)[:, None, :]
        rows, of_head = np.arange(self.batch)[:, None, None], np.arange(heads)[None, :, None]
        return cache, pt.set_subtensor(cache[rows, of_head, at], new)


#: The decoding that layers are now called for; None outside of it.
decoding: ContextVar[Decoding | None] = ContextVar("decoding", default=None)
