"""Declared axes: what the axes of a tensor are, for layers to compare with what they take.

A declaration is a string of letters, one for each axis. It hangs on an input's variable, and is found for
what is computed of it wherever each axis of the result is one of the input's: through elementwise functions,
transposes, reductions, slices and layers.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor

from ptml.fused import Fused

__all__ = ["LETTERS", "axes_of", "declare_axes", "parsed_axes"]

#: What each letter stands for.
LETTERS = {
    "N": "batch",
    "C": "channels",
    "D": "depth",
    "H": "height",
    "W": "width",
    "T": "time",
    "L": "length",
}
NOT_A_STRING = "{who}: axes must be a string with one letter for each axis, such as 'NHWC'; got {axes!r}."
WRONG_LENGTH = "{who}: axes={axes!r} has {given} letters, and shape {shape} has {ndim} axes."
UNKNOWN_LETTER = (
    "{who}: axes={axes!r} has the letter {letter!r}, which stands for nothing. The letters are {known}."
)
TWICE = "{who}: axes={axes!r} has {letter!r} twice. Each axis has a letter of its own: {known}."


def parsed_axes(axes: Any, shape: tuple[int | None, ...], who: str) -> str:
    """Check a declaration.

    Parameters
    ----------
    axes : str
        A letter for each axis: N batch, C channels, D depth, H height, W width, T time, L length.
    shape : tuple of int or None
        The shape of what has those axes.
    who : str
        What errors name.

    Raises
    ------
    TypeError
        If it is no string.
    ValueError
        If it has another length than the shape, or a letter that is unknown or stands there twice.

    Examples
    --------
    >>> parsed_axes("NHWC", (None, 8, 8, 3), "Input 'X'")
    'NHWC'
    """
    known = ", ".join(f"{letter} ({word})" for letter, word in LETTERS.items())
    if not isinstance(axes, str):
        raise TypeError(NOT_A_STRING.format(who=who, axes=axes))
    for letter in axes:
        if letter not in LETTERS:
            raise ValueError(UNKNOWN_LETTER.format(who=who, axes=axes, letter=letter, known=known))
        if axes.count(letter) > 1:
            raise ValueError(TWICE.format(who=who, axes=axes, letter=letter, known=known))
    if len(axes) != len(shape):
        raise ValueError(
            WRONG_LENGTH.format(who=who, axes=axes, given=len(axes), shape=shape, ndim=len(shape))
        )
    return axes


def declare_axes(X: Variable, axes: str | None) -> Variable:
    """Note what the axes of a tensor are, and give it back."""
    X.tag.axes = axes
    return X


def axes_of(X: Any) -> str | None:
    """Say what the axes of a tensor are, as far as declarations tell.

    Parameters
    ----------
    X : tensor

    Returns
    -------
    str or None
        A letter for each axis, or None where an axis is not known.

    Examples
    --------
    >>> from ptml.layers import Input
    >>> X = Input("X", (None, 3, 32, 32), axes="NCHW")
    >>> axes_of(X), axes_of(2 * X.transpose(0, 2, 3, 1)), axes_of(X.mean(axis=(2, 3)))
    ('NCHW', 'NHWC', 'NC')
    >>> axes_of(X.reshape((-1, 3072))) is None
    True
    """
    pending = [X]
    while pending:
        one = pending[-1]
        if _is_known(one):
            pending.pop()
            continue
        unknown = [value for value in one.owner.inputs if not _is_known(value)]
        if unknown:
            pending.extend(unknown)
        else:
            declare_axes(one, _computed(one))
            pending.pop()
    return getattr(X.tag, "axes", None)


def _is_known(X: Variable) -> bool:
    return X.owner is None or hasattr(X.tag, "axes")


def _computed(X: Any) -> str | None:
    """Say what the axes of a result are, from those of what it is computed of."""
    node = X.owner
    known = [getattr(value.tag, "axes", None) for value in node.inputs]
    first, op = known[0] if known else None, node.op
    ndim = getattr(X.type, "ndim", None)
    if isinstance(op, Elemwise):
        declared = {axes for axes in known if axes is not None and len(axes) == ndim}
        return declared.pop() if len(declared) == 1 else None
    if first is None or ndim is None:
        return None
    if isinstance(op, DimShuffle):
        return None if "x" in op.new_order else "".join(first[axis] for axis in op.new_order)
    if isinstance(op, CAReduce):
        gone = range(len(first)) if op.axis is None else op.axis
        return "".join(letter for axis, letter in enumerate(first) if axis not in gone)
    if isinstance(op, Subtensor):
        kept = [isinstance(entry, slice) for entry in op.idx_list]
        return "".join(letter for axis, letter in enumerate(first) if axis >= len(kept) or kept[axis])
    if _is_product(op) and len(first) == ndim:
        return f"{first[:-1]}C" if "C" not in first[:-1] else None
    views = getattr(op, "view_map", {}) == {0: [0]} and not isinstance(op, Reshape)
    return first if len(first) == ndim and (views or isinstance(op, Fused)) else None


def _is_product(op: Any) -> bool:
    """Say whether an op multiplies by a matrix, whose columns are the features of the result."""
    from pytensor.tensor.blockwise import Blockwise
    from pytensor.tensor.math import Dot

    return isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot))
