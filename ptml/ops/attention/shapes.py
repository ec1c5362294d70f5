"""What sizes attention takes: checked at once where they are known, else when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import SameSize

__all__ = ["checked_sizes", "wrong_sizes"]

NDIM = "{who} takes {what} of at least 3 axes, (..., heads, time, features); got shape {shape}.{hint}"
ONE_HEAD = " Write {what}[..., None, :, :] for a single head."
DIFFER = (
    "{who}: {what} and {other} must have the same {of}, axis {axis}; got {what} of shape {shape} and {other} "
    "of shape {beside}."
)
HEADS = (
    "{who}: the heads of queries, axis -3, must be a multiple of those of keys and values; got {heads} and "
    "{kv_heads}, queries of shape {shape} and keys of shape {beside}."
)
MASK = (
    "{who}: the mask must broadcast to (..., heads, time_q, time_k) = {scores}; got shape {shape}: axis "
    "{axis} is {given}, where {size} or 1 is wanted.{hint}"
)
MASK_NDIM = "{who}: the mask has more axes than the scores, {scores}; got shape {shape}."
MASK_SWAPPED = " Its last axes are (time_k, time_q): write mask.swapaxes(-1, -2)."

_NAMES = ("queries", "keys", "values")
_PAIRS = ((0, 1, -1, "features"), (1, 2, -2, "length"), (1, 2, -3, "heads"))

Shape = Sequence[int | None]


def _differ(one: int | None, other: int | None) -> bool:
    return None not in (one, other) and one != other


def wrong_sizes(who: str, shapes: Sequence[Shape]) -> str | None:
    """Say what is wrong with the shapes of queries, keys, values and possibly a mask, or give None.

    Parameters
    ----------
    who : str
        What the message names.
    shapes : sequence of tuple
        A size that is not known is None, and goes with every other.

    Examples
    --------
    >>> from ptml.ops.attention.shapes import wrong_sizes
    >>> wrong_sizes("attend", [(1, 5, 4), (1, 6, 3), (1, 6, 4)]).split(";")[0]
    'attend: queries and keys must have the same features, axis -1'
    """
    q, k, v, *masks = map(tuple, shapes)
    every = (q, k, v)
    for what, shape in zip(_NAMES, every, strict=True):
        if len(shape) < 3:
            hint = ONE_HEAD.format(what=what) if len(shape) == 2 else ""
            return NDIM.format(who=who, what=what, shape=shape, hint=hint)

    def differ(one: int, other: int, axis: int, of: str) -> str:
        return DIFFER.format(
            who=who,
            what=_NAMES[one],
            other=_NAMES[other],
            of=of,
            axis=axis,
            shape=every[one],
            beside=every[other],
        )

    for pair in _PAIRS:
        one, other, axis, _ = pair
        if _differ(every[one][axis], every[other][axis]):
            return differ(*pair)
    heads, kv_heads = q[-3], k[-3]
    if heads is not None and kv_heads is not None and heads % (kv_heads or heads + 1):
        return HEADS.format(who=who, heads=heads, kv_heads=kv_heads, shape=q, beside=k)
    batch: list[int | None] = []
    for axis in range(-max(map(len, every)), -3):
        sizes = {n: shape[axis] for n, shape in enumerate(every) if len(shape) >= -axis and shape[axis] != 1}
        known = {n: size for n, size in sizes.items() if size is not None}
        first, *rest = [*known] or [0]
        for other in rest:
            if known[first] != known[other]:
                return differ(first, other, axis, "size of the batch")
        batch.append(known[first] if known else (None if sizes else 1))
    scores = (*batch, heads, q[-2], k[-2])
    return _wrong_mask(who, scores, masks[0]) if masks else None


def _wrong_mask(who: str, scores: Shape, mask: Shape) -> str | None:
    """Say what is wrong with the shape of a mask."""
    if len(mask) > len(scores):
        return MASK_NDIM.format(who=who, scores=scores, shape=mask)
    for axis in range(-len(mask), 0):
        given, size = mask[axis], scores[axis]
        if given == 1 or not _differ(given, size):
            continue
        swapped = len(mask) > 1 and axis >= -2 and (mask[-1], mask[-2]) == tuple(scores[-2:])
        return MASK.format(
            who=who,
            scores=scores,
            shape=mask,
            axis=axis,
            given=given,
            size=size,
            hint=MASK_SWAPPED if swapped else "",
        )
    return None


def checked_sizes(who: str, inputs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Check the shapes of queries, keys, values and possibly a mask.

    Parameters
    ----------
    who : str
        What errors name.
    inputs : sequence of tensor

    Returns
    -------
    list of tensor
        What the sizes of are checked in the running graph, where they are not known before.

    Raises
    ------
    ValueError
        If the static sizes do not go together.
    """
    wrong = wrong_sizes(who, [x.type.shape for x in inputs])
    if wrong is not None:
        raise ValueError(wrong)
    checked = list(inputs)
    for one, other, axis, of in _PAIRS:
        if None in (inputs[one].type.shape[axis], inputs[other].type.shape[axis]):
            wants = f"{_NAMES[one]} and {_NAMES[other]} of the same {of}"
            checked[one] = SameSize(who, axis, wants)(checked[one], inputs[other])
    for mask in checked[3:]:
        beside = {-2: inputs[0], -1: pt.matrix_transpose(inputs[1])}
        for axis, other in beside.items():
            if mask.type.ndim < -axis or mask.type.shape[axis] == 1:
                continue
            if None in (mask.type.shape[axis], other.type.shape[axis]):
                of = "queries (..., time_q, d)" if axis == -2 else "transposed keys (..., d, time_k)"
                mask = SameSize(who, axis, f"a mask (..., time_q, time_k) beside {of}")(mask, other)
        checked[3] = mask
    return checked
