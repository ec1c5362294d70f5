"""Where windows lie in memory: the tables that kernels of convolutions walk by.

Both directions are told alike. Along each axis there are *phases*: equally spaced results that are made of
the same taps. A convolution has one; its adjoint by the data has as many as the stride, so that no window is
spread over zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from ptml.ops.convolution import Sliding

__all__ = ["Phase", "Tables", "axis_of", "axis_of_adjoint", "tables_of"]

#: How many numbers of data a band may have, so that it stays in the second-level cache.
BAND = 2**17
#: How many units of work there should be, where images have so many rows.
UNITS = 16


@attrs.frozen
class Phase:
    """Results along an axis that are made of the same taps.

    Attributes
    ----------
    first, step, count : int
        Where they are: at ``first``, ``first + step``, and so on.
    step_in : int
        How far the windows that they are made of are apart.
    taps : list of tuple
        The number of each tap, and how far it is from the window's beginning, which may be negative.
    """

    first: int
    step: int
    count: int
    step_in: int
    taps: list[tuple[int, int]]


def axis_of(sliding: Sliding, axis: int, size: int) -> list[Phase]:
    """Tell how windows lie along an axis of data of some size."""
    k, d, (before, _) = sliding.kernel_size[axis], sliding.dilation[axis], sliding.padding[axis]
    count = sliding.output_sizes([size] * sliding.n_spatial)[axis]
    return [Phase(0, 1, count, sliding.stride[axis], [(t, t * d - before) for t in range(k)])]


def axis_of_adjoint(sliding: Sliding, axis: int, size: int) -> list[Phase]:
    """Tell which results, and which taps, an element of data of some size is made of along an axis."""
    k, d, (before, _) = sliding.kernel_size[axis], sliding.dilation[axis], sliding.padding[axis]
    step = sliding.stride[axis]
    return [
        Phase(
            first,
            step,
            -(-(size - first) // step),
            1,
            [(t, (first + before - t * d) // step) for t in range(k) if (first + before - t * d) % step == 0],
        )
        for first in range(min(step, size))
    ]


@attrs.frozen
class Tables:
    """The tables, and what goes with them.

    Attributes
    ----------
    rows, lines, bands : ndarray of int64
        As the kernels have them.
    taps : list of tuple
        The number of each tap, and how many numbers it is from the beginning of a window.
    buffer : int
        How many numbers a buffer has; 0 where the data is read as it lies.
    before, inside, after : int
        The numbers of a line.
    step_in, step_out : int
        How many numbers windows are apart.
    """

    rows: np.ndarray
    lines: np.ndarray
    bands: np.ndarray
    taps: list[tuple[int, int]]
    buffer: int
    before: int
    inside: int
    after: int
    step_in: int
    step_out: int

    @property
    def n_bands(self) -> int:
        """How many bands an image has."""
        return len(self.bands)

    @property
    def counts(self) -> np.ndarray:
        """How many windows each row has."""
        return self.rows[:, 2]


def tables_of(
    axes: Sequence[list[Phase]],
    kernel_size: Sequence[int],
    sizes: Sequence[int],
    channels: int,
    out_sizes: Sequence[int],
    out_channels: int,
    batch: int,
) -> Tables:
    """Make the tables.

    Parameters
    ----------
    axes : sequence of list of Phase
        For each spatial axis.
    kernel_size : sequence of int
    sizes, channels
        Of the data.
    out_sizes, out_channels
        Of the result.
    batch : int
        How many images there are.
    """
    before, after = _margins(axes, sizes)
    padded = [n + a + b for n, a, b in zip(sizes, before, after, strict=True)]
    strides = _strides(padded, channels)
    out_strides = _strides(out_sizes, out_channels)
    tap_strides = _strides(kernel_size, 1)
    rows: list[tuple[int, ...]] = []
    taps: list[tuple[int, int]] = []
    reach: list[tuple[int, int]] = []
    for phases in itertools.product(*axes):
        first_tap = len(taps)
        for combined in itertools.product(*(phase.taps for phase in phases)):
            number = sum(t * s for (t, _), s in zip(combined, tap_strides, strict=True))
            taps.append((number, sum(away * s for (_, away), s in zip(combined, strides, strict=True))))
        aways = [away for _, away in phases[0].taps] or [0]
        for outer in itertools.product(*(range(phase.count) for phase in phases[:-1])):
            at = [*outer, 0]
            places = [q * p.step_in + a for q, p, a in zip(at, phases, before, strict=True)]
            outs = [p.first + q * p.step for q, p in zip(at, phases, strict=True)]
            rows.append(
                (
                    sum(x * s for x, s in zip(places, strides, strict=True)),
                    sum(x * s for x, s in zip(outs, out_strides, strict=True)),
                    phases[-1].count,
                    first_tap,
                    len(taps) - first_tap,
                )
            )
            reach.append((places[0] + min(aways), places[0] + max(aways) + 1))
    copied = any(before) or any(after)
    if len(sizes) == 1:
        # The only axis is the row itself, which is not divided.
        reach = [(0, padded[0])] * len(rows)
    bands = _bands(reach, strides[0], batch)
    table: list[tuple[int, ...]] = []
    lines: list[tuple[int, int]] = []
    found, longest = [], 0
    for chosen in bands:
        low, high = min(reach[r][0] for r in chosen), max(reach[r][1] for r in chosen)
        start, first_line = low * strides[0] if copied else 0, len(lines)
        if copied:
            lines += _lines(low, high, before, sizes, padded, channels)
        found.append((len(table), len(chosen), first_line, len(lines) - first_line))
        table += [(rows[r][0] - start, *rows[r][1:]) for r in chosen]
        longest = max(longest, (high - low) * strides[0])
    last = axes[-1][0]
    return Tables(
        rows=np.array(table, np.int64).reshape(-1, 5),
        lines=np.array(lines or [(0, 0)], np.int64),
        bands=np.array(found, np.int64),
        taps=taps,
        buffer=longest if copied else 0,
        before=before[-1] * channels,
        inside=sizes[-1] * channels,
        after=after[-1] * channels,
        step_in=last.step_in * channels,
        step_out=last.step * out_channels,
    )


def _strides(sizes: Sequence[int], each: int) -> list[int]:
    return [math.prod(sizes[axis + 1 :]) * each for axis in range(len(sizes))]


def _margins(axes: Sequence[list[Phase]], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give the zeros that windows reach before and after the data."""
    before, after = [], []
    for phases, size in zip(axes, sizes, strict=True):
        aways = [
            (away, away + (phase.count - 1) * phase.step_in) for phase in phases for _, away in phase.taps
        ]
        before.append(max([0, *(-low for low, _ in aways)]))
        after.append(max([0, *(high - (size - 1) for _, high in aways)]))
    return before, after


def _bands(reach: list[tuple[int, int]], plane: int, batch: int) -> list[list[int]]:
    """Divide the rows into bands, in the order of the data that they reach."""
    order = sorted(range(len(reach)), key=lambda r: reach[r])
    depth = max(high for _, high in reach) - min(low for low, _ in reach)
    n = max(math.ceil(depth * plane / BAND), math.ceil(UNITS / max(batch, 1)))
    n = min(n, len({low for low, _ in reach}))
    return [list(part) for part in np.array_split(order, n)]


def _lines(
    low: int, high: int, before: list[int], sizes: Sequence[int], padded: list[int], channels: int
) -> list[tuple[int, int]]:
    """Tell what each line of a buffer has, for the planes from low to high."""
    if len(sizes) == 1:
        return [(0, 0)]
    lines = []
    into, strides = _strides(padded, channels), _strides(sizes, channels)
    for at in itertools.product(range(low, high), *(range(n) for n in padded[1:-1])):
        target = sum(x * s for x, s in zip((at[0] - low, *at[1:]), into, strict=False))
        places = [x - a for x, a in zip(at, before, strict=False)]
        known = all(0 <= x < n for x, n in zip(places, sizes, strict=False))
        lines.append((target, sum(x * s for x, s in zip(places, strides, strict=False)) if known else -1))
    return lines
