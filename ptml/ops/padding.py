"""Padding of spatial axes, as a fused op with its adjoint: ``(batch, *spatial, channels)``, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused
from ptml.lengths import check_length

__all__ = ["MODES", "Pad", "PadGradient", "PaddingMode", "pad"]

PaddingMode = Literal["constant", "reflect", "replicate", "circular"]

#: How what is added is made.
MODES = ("constant", "reflect", "replicate", "circular")

NO_SUCH_MODE = "mode must be one of {modes}; got {mode!r}."
WRONG_COUNT = "A tensor of {ndim} axes has {wanted} between batch and channels; got {given} pairs of widths."

Widths = tuple[tuple[int, int], ...]


def shortest(before: int, after: int, mode: str) -> int:
    """Give the shortest axis that can be padded."""
    if not before and not after:
        return 0
    return {
        "constant": 0,
        "reflect": max(before, after) + 1,
        "replicate": 1,
        "circular": max(before, after),
    }[mode]


def sources(length: int, before: int, after: int, mode: str) -> np.ndarray:
    """Give the positions that an axis has after it was padded in terms of those before, -1 for new values.

    Parameters
    ----------
    length : int
    before, after : int
    mode : str
    """
    i = np.arange(-before, length + after)
    if mode == "constant":
        return np.where((i < 0) | (i >= length), -1, i)
    if mode == "replicate":
        return np.clip(i, 0, max(length - 1, 0))
    if mode == "circular":
        return i % max(length, 1)
    i = np.abs(i)
    return np.where(i >= length, 2 * (length - 1) - i, i)


class _Pads(Fused):
    """What both ops have: widths, one pair for each spatial axis, and a mode."""

    __props__: tuple[str, ...] = ("widths", "mode")

    def __init__(self, widths: Widths, mode: PaddingMode) -> None:
        self.widths, self.mode = widths, mode

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[x.type.dtype.startswith("float")] for x in node.inputs]

    def grown(self, shape: Sequence[Any], sign: int) -> list[Any]:
        """Give the sizes after padding, or before it."""
        known = [*shape]
        for axis, (before, after) in enumerate(self.widths, start=1):
            added = before + after
            if known[axis] is not None and added:
                known[axis] = known[axis] + added if sign > 0 else known[axis] - added
        return known

    def ends(self, axis: int) -> list[np.ndarray]:
        """Give the positions of what is put before and after an axis, those at its end as negative ones."""
        before, after = self.widths[axis - 1]
        if self.mode == "reflect":
            return [np.arange(before, 0, -1), np.arange(-2, -after - 2, -1)]
        if self.mode == "circular":
            return [np.arange(-before, 0), np.arange(after)]
        return [np.zeros(before, "int64"), np.full(after, -1, "int64")]


class Pad(_Pads):
    """A tensor with something put before and after its spatial axes.

    Parameters
    ----------
    widths : tuple of pair of int
        How much is put before and after each spatial axis.
    mode : {"constant", "reflect", "replicate", "circular"}
    value : float
        What a constant padding consists of. Default 0.0.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.padding import Pad
    >>> x = pt.constant(np.arange(4.0).reshape(1, 4, 1))
    >>> Pad(((1, 2),), "reflect")(x).eval().ravel()
    array([1., 0., 1., 2., 3., 2., 1.])
    """

    __props__ = ("widths", "mode", "value")

    def __init__(self, widths: Widths, mode: PaddingMode, value: float = 0.0) -> None:
        super().__init__(widths, mode)
        self.value = value

    def output_types(self, x: TensorVariable) -> Sequence[Type]:
        return [x.type.clone(shape=tuple(self.grown(x.type.shape, 1)))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [tuple(self.grown(shapes[0], 1))]

    def build(self, x: TensorVariable) -> list[Variable]:
        for axis, (before, after) in enumerate(self.widths, start=1):
            if not before and not after:
                continue
            if self.mode == "constant":
                sizes = list(x.shape)
                value = np.asarray(self.value, x.type.dtype)
                ends = [pt.alloc(value, *sizes[:axis], n, *sizes[axis + 1 :]) for n in (before, after)]
            else:
                ends = [pt.take(x, positions, axis=axis) for positions in self.ends(axis)]
            first, last = ([end] if width else [] for end, width in zip(ends, (before, after), strict=True))
            x = pt.join(axis, *first, x, *last)
        return [x]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [PadGradient(self.widths, self.mode)(cotangents[0])]


class PadGradient(_Pads):
    """The adjoint of a padding: what was put before and after is added to where it came from.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.padding import PadGradient
    >>> g = pt.constant(np.ones((1, 7, 1)))
    >>> PadGradient(((1, 2),), "reflect")(g).eval().ravel()
    array([1., 3., 2., 1.])
    """

    def output_types(self, g: TensorVariable) -> Sequence[Type]:
        return [g.type.clone(shape=tuple(self.grown(g.type.shape, -1)))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [tuple(self.grown(shapes[0], -1))]

    def build(self, g: TensorVariable) -> list[Variable]:
        # The last axis that was padded is the first to go.
        for axis, (before, after) in reversed(list(enumerate(self.widths, start=1))):
            if not before and not after:
                continue
            whole = (slice(None),) * axis
            inner = g[(*whole, slice(before, -after or None))]
            if self.mode != "constant":
                ends = (g[(*whole, slice(None, before))], g[(*whole, slice(-after, None))])
                for end, positions in zip(ends, self.ends(axis), strict=True):
                    if len(positions):
                        inner = pt.inc_subtensor(inner[(*whole, positions)], end)
            g = inner
        return [g]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [Pad(self.widths, self.mode)(cotangents[0])]


def pad(
    x: TensorVariable,
    widths: Sequence[tuple[int, int]],
    mode: PaddingMode = "constant",
    value: float = 0.0,
    *,
    layer: Any = "pad",
) -> TensorVariable:
    """Put something before and after the spatial axes of a tensor.

    Parameters
    ----------
    x : tensor, (batch, \\*spatial, channels)
    widths : sequence of pair of int
        How much is put before and after each spatial axis, in their order.
    mode : {"constant", "reflect", "replicate", "circular"}
        Whether what is put there is a value, the mirrored tensor (without its first or last position), its
        first or last position, or its other end. ``"constant"`` unless given.
    value : float
        What a constant padding consists of; 0 unless given.
    layer : Layer or str
        What errors name.

    Raises
    ------
    ValueError
        If there is no such mode, or not one pair for each spatial axis; at once, or by the running graph
        where the length is not known before, if an axis is too short to be mirrored or repeated that far.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.padding import pad
    >>> x = pt.constant(np.arange(4.0).reshape(1, 4, 1))
    >>> pad(x, [(2, 1)], "circular").eval().ravel()
    array([2., 3., 0., 1., 2., 3., 0.])
    """
    if mode not in MODES:
        raise ValueError(NO_SUCH_MODE.format(modes=", ".join(map(repr, MODES)), mode=mode))
    if len(widths) != x.type.ndim - 2:
        raise ValueError(WRONG_COUNT.format(ndim=x.type.ndim, wanted=x.type.ndim - 2, given=len(widths)))
    pairs = tuple((int(before), int(after)) for before, after in widths)
    if not any(before or after for before, after in pairs):
        return x
    for axis, (before, after) in enumerate(pairs, start=1):
        x = check_length(
            layer,
            x,
            shortest(before, after, mode),
            axis=axis,
            of=f"positions ({mode} padding takes {max(before, after)} from it)",
            hint="Pad less, or in another mode.",
        )
    return Pad(pairs, mode, float(value) if mode == "constant" else 0.0)(x)
