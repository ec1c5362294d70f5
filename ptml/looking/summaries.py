"""A network at a glance: what each layer gives, and how much it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ptml.declare import own_slots
from ptml.layer import Layer
from ptml.looking.calls import Call, calls_of
from ptml_state import Role
from ptml_state.display import bytes_text, columns

__all__ = ["LayerRow", "NetworkSummary", "summary"]

NO_INPUT = (
    "summary(network, X) calls the network: give what it takes, an Input or a shape such as (None, 64); or "
    "give what a call gave, summary(network(X))."
)


@attrs.frozen
class LayerRow:
    """One call of a layer.

    Attributes
    ----------
    name : str
        As in addresses.
    kind : str
        The layer's class.
    depth : int
        How many calls it is made within.
    shapes : tuple of tuples
        Of what it gives; None for sizes that are not known.
    parameters, others : int
        How many numbers it declares itself: parameters, and other state.
    nbytes : int
        Bytes of both.
    shared : bool
        Whether an earlier call has them already.
    """

    name: str
    kind: str
    depth: int
    shapes: tuple[tuple[int | None, ...], ...]
    parameters: int
    others: int
    nbytes: int
    shared: bool


@attrs.frozen(repr=False)
class NetworkSummary:
    """A network's layers, call by call; made by :func:`summary`. It prints as a table.

    Attributes
    ----------
    rows : tuple of LayerRow
    """

    rows: tuple[LayerRow, ...]

    @property
    def parameters(self) -> int:
        """How many numbers the parameters hold, shared ones once."""
        return sum(row.parameters for row in self.rows if not row.shared)

    @property
    def nbytes(self) -> int:
        """Bytes of all state, shared ones once."""
        return sum(row.nbytes for row in self.rows if not row.shared)

    def __str__(self) -> str:
        table = [["layer", "", "output", "parameters", "other state", "bytes"]]
        for row in self.rows:
            shapes = ", ".join(
                "(" + ", ".join("?" if n is None else str(n) for n in s) + ")" for s in row.shapes
            )
            held = [f"{n:,}" if n else "" for n in (row.parameters, row.others)]
            size = "shared" if row.shared else bytes_text(row.nbytes) if row.nbytes else ""
            table.append(["  " * row.depth + row.name, row.kind, shapes, *held, size])
        others = sum(row.others for row in self.rows if not row.shared)
        table.append(["total", "", "", f"{self.parameters:,}", f"{others:,}", bytes_text(self.nbytes)])
        return columns(table, [False, False, False, True, True, True])

    __repr__ = __str__


def summary(network: Any, *inputs: Any) -> NetworkSummary:
    """Say what each layer of a network gives, and how much it holds, without computing anything.

    Parameters
    ----------
    network : Layer, or tensor or tensors that networks gave
    *inputs : tensor or shape
        What the layer is called on: an Input, or a shape of floats, None for sizes that are not known.

    Returns
    -------
    NetworkSummary
        One row for each call, in the order of the calls, with those that it makes itself below it. A layer
        that is called twice, or stands at two places, is ``shared`` the second time.

    Raises
    ------
    TypeError
        If a layer is given nothing to be called on.

    Examples
    --------
    >>> import ptml
    >>> from ptml.activations import ReLU
    >>> from ptml.layers import Linear, Sequential
    >>> net = Sequential(Linear("fc1", n_in=64, n_out=32), ReLU(), Linear("fc2", n_in=32, n_out=10))
    >>> ptml.summary(net, (None, 64))
    layer                   output   parameters  other state    bytes
    Sequential  Sequential  (?, 10)
      fc1       Linear      (?, 32)       2,080               16.6 kB
      ReLU      ReLU        (?, 32)
      fc2       Linear      (?, 10)         330                2.6 kB
    total                                 2,410            0  19.3 kB
    """
    if isinstance(network, Layer):
        if not inputs:
            raise TypeError(NO_INPUT)
        given = network(*map(_as_input, inputs))
    else:
        given = network
    outputs: Sequence[Any] = [given] if isinstance(given, Variable) else list(given)
    _, calls = calls_of(outputs)
    seen: set[Any] = set()
    return NetworkSummary(tuple(_row(call, seen) for call in calls))


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in shape)})"


def _as_input(value: Any) -> Any:
    if isinstance(value, Variable):
        return value
    if not isinstance(value, tuple | list):
        raise TypeError(NO_INPUT)
    return pt.tensor("X", dtype=pytensor.config.floatX, shape=tuple(value))


def _row(call: Call, seen: set[Any]) -> LayerRow:
    slots = [handle.slot for handle in own_slots(call.layer)]
    shared = bool(slots) and slots[0] in seen
    seen.update(slots)
    numbers = {slot: slot.nbytes // max(slot.type.numpy_dtype.itemsize, 1) for slot in slots}
    parameters = sum(n for slot, n in numbers.items() if slot.role is Role.PARAMETER)
    return LayerRow(
        name=call.name,
        kind=type(call.layer).__name__,
        depth=call.depth,
        shapes=tuple(tuple(output.type.shape) for output in call.outputs),
        parameters=parameters,
        others=sum(numbers.values()) - parameters,
        nbytes=sum(slot.nbytes for slot in slots),
        shared=shared,
    )
