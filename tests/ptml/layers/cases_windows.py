"""Lines of the conformance table for padding, pooling and resizing, with references from the definitions."""

from __future__ import annotations

import itertools

import numpy as np

from ptml.layers import (
    AdaptiveAvgPool2D,
    AdaptiveMaxPool1D,
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    CircularPad2D,
    ConstantPad1D,
    GlobalAvgPool2D,
    GlobalMaxPool2D,
    LpPool2D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    ReflectionPad2D,
    ReplicationPad3D,
    Upsample1D,
    Upsample2D,
    Upsample3D,
    ZeroPad2D,
)


def sliding(n, size, stride, dilation=1, before=0, after=0):
    """List the positions that windows take of an axis, those of padding included."""
    count = (n + before + after - dilation * (size - 1) - 1) // stride + 1
    return [[i * stride - before + k * dilation for k in range(size)] for i in range(count)]


def even(n, count):
    """List the positions of windows that divide an axis."""
    return [list(range(i * n // count, -(-(i + 1) * n // count))) for i in range(count)]


def pooled(x, windows, kind, counts_padding=True):
    """Take the windows one by one."""
    y = np.zeros((len(x), *map(len, windows), x.shape[-1]), x.dtype)
    for n, c in itertools.product(range(len(x)), range(x.shape[-1])):
        for at in itertools.product(*(range(len(axis)) for axis in windows)):
            taps = list(itertools.product(*(axis[i] for axis, i in zip(windows, at, strict=True))))
            inside = [t for t in taps if all(0 <= p < s for p, s in zip(t, x.shape[1:-1], strict=True))]
            values = [x[(n, *t, c)] for t in inside]
            if kind == "max":
                y[(n, *at, c)] = values[int(np.argmax(np.real(values)))]
            elif kind == "norm":
                y[(n, *at, c)] = np.sqrt(sum(v * v for v in values))
            else:
                y[(n, *at, c)] = sum(values) / len(taps if counts_padding else inside)
    return y


def padded(x, widths, mode, **options):
    return np.pad(x, [(0, 0), *widths, (0, 0)], mode=mode, **options)


def matrix(n, after, mode, corners=False):
    """Give what each new position is made of, from the definitions of PyTorch's documentation."""
    A, table = -0.75, np.zeros((after, n))
    for j in range(after):
        if mode == "nearest":
            table[j, int(np.floor(j * n / after))] = 1
            continue
        at = j * (n - 1) / max(after - 1, 1) if corners else (j + 0.5) * n / after - 0.5
        if mode == "linear":
            at = max(at, 0.0)
        low = int(np.floor(at + 1e-12))
        for k in range(low - 1, low + 3):
            d = abs(at - k)
            if mode == "linear":
                weight = max(1 - d, 0.0)
            elif d <= 1:
                weight = (A + 2) * d**3 - (A + 3) * d**2 + 1
            else:
                weight = A * d**3 - 5 * A * d**2 + 8 * A * d - 4 * A if d < 2 else 0.0
            table[j, min(max(k, 0), n - 1)] += weight
    return table


def resized(x, after, mode, corners=False):
    for axis, size in enumerate(after, start=1):
        table = matrix(x.shape[axis], size, mode, corners)
        x = np.moveaxis(np.tensordot(table, x, (1, axis)), 0, axis)
    return x


CASES = {
    "zero_pad": {
        "layer": lambda: ZeroPad2D("zeros", padding=((1, 2), (0, 1))),
        "shape": (2, 3, 2, 2),
        "reference": lambda p, x: padded(x, [(1, 2), (0, 1)], "constant"),
    },
    "constant_pad": {
        "layer": lambda: ConstantPad1D("constant", padding=(2, 1), value=-1.5),
        "shape": (2, 3, 2),
        "reference": lambda p, x: padded(x, [(2, 1)], "constant", constant_values=-1.5),
    },
    "reflection_pad": {
        "layer": lambda: ReflectionPad2D("mirror", padding=((1, 2), (2, 0))),
        "shape": (2, 3, 4, 2),
        "reference": lambda p, x: padded(x, [(1, 2), (2, 0)], "reflect"),
        "smallest": (1, 3, 3, 1),
    },
    "replication_pad": {
        "layer": lambda: ReplicationPad3D("edge", padding=(1, 0, 2)),
        "shape": (1, 2, 2, 3, 2),
        "reference": lambda p, x: padded(x, [(1, 1), (0, 0), (2, 2)], "edge"),
    },
    "circular_pad": {
        "layer": lambda: CircularPad2D("ring", padding=((2, 1), (0, 3))),
        "shape": (2, 3, 3, 2),
        "reference": lambda p, x: padded(x, [(2, 1), (0, 3)], "wrap"),
        "smallest": (1, 2, 3, 1),
    },
    "max_pool": {
        "layer": lambda: MaxPool2D("max"),
        "shape": (2, 5, 4, 3),
        "reference": lambda p, x: pooled(x, [sliding(x.shape[1], 2, 2), sliding(x.shape[2], 2, 2)], "max"),
        "smallest": (1, 2, 2, 1),
    },
    "max_pool_that_overlaps": {
        "layer": lambda: MaxPool2D("over", kernel_size=3, stride=2, padding=((1, 1), (0, 2))),
        "shape": (1, 6, 5, 2),
        "reference": lambda p, x: pooled(
            x, [sliding(x.shape[1], 3, 2, 1, 1, 1), sliding(x.shape[2], 3, 2, 1, 0, 2)], "max"
        ),
        "smallest": (1, 1, 1, 1),
    },
    "max_pool_with_holes": {
        "layer": lambda: MaxPool1D("holes", kernel_size=3, stride=1, dilation=2, padding="same"),
        "shape": (2, 6, 2),
        "reference": lambda p, x: pooled(x, [sliding(x.shape[1], 3, 1, 2, 2, 2)], "max"),
    },
    "max_pool_of_the_rest": {
        "layer": lambda: MaxPool1D("rest", kernel_size=3, ceil_mode=True),
        "shape": (2, 7, 2),
        "reference": lambda p, x: pooled(
            x, [sliding(x.shape[1], 3, 3, after=2 if x.shape[1] % 3 else 0)], "max"
        ),
    },
    "max_pool_3d": {
        "layer": lambda: MaxPool3D("cube"),
        "shape": (1, 2, 4, 2, 2),
        "reference": lambda p, x: pooled(x, [sliding(n, 2, 2) for n in x.shape[1:-1]], "max"),
        "smallest": (1, 2, 2, 2, 1),
    },
    "average_pool": {
        "layer": lambda: AvgPool2D("mean", kernel_size=(3, 2), stride=(2, 1), padding=((1, 1), (0, 1))),
        "shape": (2, 5, 3, 2),
        "reference": lambda p, x: pooled(
            x, [sliding(x.shape[1], 3, 2, 1, 1, 1), sliding(x.shape[2], 2, 1, 1, 0, 1)], "mean"
        ),
    },
    "average_pool_without_padding": {
        "layer": lambda: AvgPool1D("inner", kernel_size=3, stride=1, padding="same", count_include_pad=False),
        "shape": (2, 4, 2),
        "reference": lambda p, x: pooled(x, [sliding(x.shape[1], 3, 1, 1, 1, 1)], "mean", False),
    },
    "average_pool_3d": {
        "layer": lambda: AvgPool3D("block"),
        "shape": (1, 3, 2, 2, 2),
        "reference": lambda p, x: pooled(x, [sliding(n, 2, 2) for n in x.shape[1:-1]], "mean"),
        "smallest": (1, 2, 2, 2, 1),
    },
    "norm_pool": {
        "layer": lambda: LpPool2D("norm"),
        "shape": (2, 4, 2, 2),
        "reference": lambda p, x: pooled(x, [sliding(x.shape[1], 2, 2), sliding(x.shape[2], 2, 2)], "norm"),
        "smallest": (1, 2, 2, 1),
    },
    "adaptive_max_pool": {
        "layer": lambda: AdaptiveMaxPool1D("evenly", output_size=3),
        "shape": (2, 7, 2),
        "reference": lambda p, x: pooled(x, [even(x.shape[1], 3)], "max"),
    },
    "adaptive_average_pool": {
        "layer": lambda: AdaptiveAvgPool2D("even", output_size=(2, 3)),
        "shape": (2, 4, 5, 2),
        "reference": lambda p, x: pooled(x, [even(x.shape[1], 2), even(x.shape[2], 3)], "mean"),
    },
    "global_max_pool": {
        "layer": lambda: GlobalMaxPool2D("most"),
        "shape": (2, 3, 2, 2),
        "reference": lambda p, x: pooled(x, [even(x.shape[1], 1), even(x.shape[2], 1)], "max")[:, 0, 0],
    },
    "global_average_pool": {
        "layer": lambda: GlobalAvgPool2D("all", keepdims=True),
        "shape": (2, 3, 2, 2),
        "reference": lambda p, x: x.mean(axis=(1, 2), keepdims=True),
    },
    "upsample": {
        "layer": lambda: Upsample2D("twice", scale_factor=(2, 3)),
        "shape": (2, 2, 3, 2),
        "reference": lambda p, x: x.repeat(2, axis=1).repeat(3, axis=2),
    },
    "upsample_linear": {
        "layer": lambda: Upsample2D("lines", size=(5, 2), mode="bilinear", align_corners=True),
        "shape": (2, 3, 4, 2),
        "reference": lambda p, x: resized(x, (5, 2), "linear", True),
    },
    "upsample_trilinear": {
        "layer": lambda: Upsample3D("planes", scale_factor=2, mode="trilinear"),
        "shape": (1, 1, 2, 3, 2),
        "reference": lambda p, x: resized(x, [2 * n for n in x.shape[1:-1]], "linear"),
    },
    "upsample_cubic": {
        "layer": lambda: Upsample1D("cubic", size=7, mode="cubic"),
        "shape": (2, 4, 2),
        "reference": lambda p, x: resized(x, (7,), "cubic"),
    },
}
