"""What layers of windows are given: sizes for each spatial axis, and padding however it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ptml.validate import described

__all__ = [
    "SPATIAL",
    "all_of",
    "a_padding",
    "per_axis",
    "resolved_padding",
    "spans_of",
    "wanted_axes",
]

#: What the spatial axes are called, by how many there are.
SPATIAL = {1: ("time",), 2: ("height", "width"), 3: ("depth", "height", "width")}

NOT_SIZES = "{who}: {argument} must be {wants} or a tuple of {count}, for {axes}; got {value!r}."
NOT_PADDING = (
    "{who}: padding must be {words}a number of elements, a tuple of one for each of {axes}, or a tuple of "
    "pairs (before, after); got {value!r}."
)
NEGATIVE = "{who}: padding adds elements, and cannot be negative; got {value!r}. To use less data, slice it."
CAUSAL = "{who}: padding='causal' is for one axis, time; here write pairs (before, after)."


def per_axis(value: Any, module: Any) -> Any:
    """Give one number as a tuple of one for each spatial axis; leave anything else to the validators."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * module.n_spatial
    return tuple(value) if isinstance(value, list) else value


def all_of(minimum: int, wants: str) -> Any:
    """Make the validator of a tuple with one integer for each spatial axis.

    Parameters
    ----------
    minimum : int
        The least that each may be.
    wants : str
        What the error says each must be, such as ``"a positive integer"``.
    """

    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        axes = SPATIAL[module.n_spatial]
        whole = isinstance(value, tuple) and all(_is_integer(n) for n in value)
        if not whole or len(value) != len(axes) or min(value) < minimum:
            error = ValueError if whole else TypeError
            raise error(
                NOT_SIZES.format(
                    who=described(module),
                    argument=field.alias,
                    wants=wants,
                    count=len(axes),
                    axes=" and ".join(axes),
                    value=value[0] if whole and len(set(value)) == 1 else value,
                )
            )

    return validate


def a_padding(words: Sequence[str]) -> Any:
    """Make the validator of a padding.

    Parameters
    ----------
    words : sequence of str
        Those that the layer takes, of ``"valid"``, ``"same"`` and ``"causal"``.
    """

    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        axes = SPATIAL[module.n_spatial]
        if value == "causal" and "causal" in words and len(axes) > 1:
            raise ValueError(CAUSAL.format(who=described(module)))
        if isinstance(value, str) and value in words:
            return
        pairs = _pairs(value, len(axes))
        if pairs is None:
            raise (ValueError if isinstance(value, str | tuple) else TypeError)(
                NOT_PADDING.format(
                    who=described(module),
                    words="".join(f"{word!r}, " for word in words),
                    axes=" and ".join(axes),
                    value=value,
                )
            )
        if min(map(min, pairs)) < 0:
            raise ValueError(NEGATIVE.format(who=described(module), value=value))

    return validate


def spans_of(kernel_size: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Give how far a window reaches along each axis.

    Examples
    --------
    >>> spans_of((3, 2), (2, 1))
    (5, 2)
    """
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel_size, dilation, strict=True))


def resolved_padding(padding: Any, spans: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Give the elements before and after each axis.

    Parameters
    ----------
    padding : str, int or tuple
        ``"valid"``: none. ``"same"``: as many as leave the number of windows at ``ceil(size / stride)``;
        where they are odd in number, one more comes after. ``"causal"``: all of these before. A number: so
        many on either side. A tuple: numbers or pairs for each axis; on a single axis, two numbers are its
        two sides.
    spans : sequence of int
        How far a window reaches along each axis.

    Examples
    --------
    >>> resolved_padding("same", (3, 2)), resolved_padding(1, (3, 2)), resolved_padding((2, 0), (3,))
    (((1, 1), (0, 1)), ((1, 1), (1, 1)), ((2, 0),))
    """
    if padding == "valid":
        return ((0, 0),) * len(spans)
    if padding == "same":
        return tuple(((span - 1) // 2, span // 2) for span in spans)
    if padding == "causal":
        return tuple((span - 1, 0) for span in spans)
    pairs = _pairs(padding, len(spans))
    assert pairs is not None
    return pairs


def wanted_axes(n_spatial: int, channels: int) -> str:
    """Describe what a layer of channels-last data takes.

    Examples
    --------
    >>> wanted_axes(2, 3)
    '(batch, height, width, 3 channels)'
    """
    return f"(batch, {', '.join(SPATIAL[n_spatial])}, {channels} channels)"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pairs(padding: Any, n_axes: int) -> tuple[tuple[int, int], ...] | None:
    """Give explicit padding as pairs, or None for what is none."""
    if _is_integer(padding):
        return ((padding, padding),) * n_axes
    if not isinstance(padding, tuple):
        return None
    if n_axes == 1 and len(padding) == 2 and all(map(_is_integer, padding)):
        return (padding,)
    found = []
    for item in padding:
        pair = (item, item) if _is_integer(item) else item
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_integer, pair)):
            return None
        found.append(pair)
    return tuple(found) if len(found) == n_axes else None
