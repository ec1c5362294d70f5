"""Lines of the conformance table for convolutions, with references from the definitions."""

from __future__ import annotations

import itertools

import numpy as np

from ptml.layers import Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded(x, padding, mode="constant"):
    ends = [(0, 0), *padding, (0, 0)]
    return np.pad(x.real, ends, mode=MODES[mode]) + 1j * np.pad(x.imag, ends, mode=MODES[mode])


def convolved(p, name, x, stride, padding, mode="constant", dilation=None, groups=1):
    """Sum over windows, one by one."""
    W, n = p[f"{name}/W"], len(stride)
    dilation = dilation or (1,) * n
    whole, (*kernel, each, out) = _padded(x, padding, mode), W.shape
    counts = [(whole.shape[1 + a] - dilation[a] * (kernel[a] - 1) - 1) // stride[a] + 1 for a in range(n)]
    y = np.zeros((len(x), *counts, out), complex)
    for i in itertools.product(*map(range, counts)):
        for t in itertools.product(*map(range, kernel)):
            seen = whole[
                (slice(None), *(a * s + k * d for a, s, k, d in zip(i, stride, t, dilation, strict=True)))
            ]
            for o in range(out):
                first = o // (out // groups) * each
                y[(slice(None), *i, o)] += seen[:, first : first + each] @ W[(*t, slice(None), o)]
    return _sum(y, p, name, x, W)


def spread(p, name, x, stride, padding, extra=None, dilation=None, groups=1):
    """Add each element, times the kernel, to its window; then cut off the padding."""
    W, n = p[f"{name}/W"], len(stride)
    dilation, extra = dilation or (1,) * n, extra or (0,) * n
    *kernel, each, out = W.shape
    sizes = [
        (x.shape[1 + a] - 1) * stride[a] + dilation[a] * (kernel[a] - 1) + 1 + extra[a] for a in range(n)
    ]
    y = np.zeros((len(x), *sizes, out), complex)
    for i in itertools.product(*map(range, x.shape[1:-1])):
        for t in itertools.product(*map(range, kernel)):
            at = tuple(a * s + k * d for a, s, k, d in zip(i, stride, t, dilation, strict=True))
            for o in range(out):
                first = o // (out // groups) * each
                own = x[(slice(None), *i, slice(first, first + each))]
                y[(slice(None), *at, o)] += own @ W[(*t, slice(None), o)]
    kept = tuple(slice(a, size - b) for size, (a, b) in zip(sizes, padding, strict=True))
    return _sum(y[(slice(None), *kept)], p, name, x, W)


def _sum(y, p, name, x, W):
    b = p.get(f"{name}/b", 0.0)
    y = y + b
    return y if any(map(np.iscomplexobj, (x, W, b))) else y.real


def leaves(name):
    return (f"{name}/W", f"{name}/b")


CASES = {
    "conv1d_causal": {
        "layer": lambda: Conv1D(
            "causal", in_channels=2, out_channels=3, kernel_size=3, dilation=2, padding="causal"
        ),
        "shape": (2, 5, 2),
        "reference": lambda p, x: convolved(p, "causal", x, (1,), [(4, 0)], dilation=(2,)),
        "leaves": leaves("causal"),
    },
    "conv2d_same": {
        "layer": lambda: Conv2D(
            "same", in_channels=3, out_channels=2, kernel_size=(2, 3), stride=(1, 2), padding="same"
        ),
        "shape": (2, 3, 4, 3),
        "reference": lambda p, x: convolved(p, "same", x, (1, 2), [(0, 1), (1, 1)]),
        "leaves": leaves("same"),
    },
    "conv2d_circular": {
        "layer": lambda: Conv2D(
            "circular",
            in_channels=2,
            out_channels=2,
            kernel_size=2,
            padding=((1, 0), (0, 1)),
            padding_mode="circular",
            bias=False,
        ),
        "shape": (1, 2, 3, 2),
        "reference": lambda p, x: convolved(p, "circular", x, (1, 1), [(1, 0), (0, 1)], "circular"),
        "leaves": ("circular/W",),
    },
    "conv2d_depthwise": {
        "layer": lambda: Conv2D(
            "depthwise", in_channels=2, out_channels=4, kernel_size=2, padding="same", groups=2
        ),
        "shape": (2, 2, 3, 2),
        "reference": lambda p, x: convolved(p, "depthwise", x, (1, 1), [(0, 1), (0, 1)], groups=2),
        "leaves": leaves("depthwise"),
    },
    "conv3d": {
        "layer": lambda: Conv3D(
            "volume", in_channels=1, out_channels=2, kernel_size=(1, 2, 2), padding=((0, 0), (1, 0), (0, 1))
        ),
        "shape": (1, 2, 2, 3, 1),
        "reference": lambda p, x: convolved(p, "volume", x, (1, 1, 1), [(0, 0), (1, 0), (0, 1)]),
        "leaves": leaves("volume"),
    },
    "conv_transpose1d": {
        "layer": lambda: ConvTranspose1D(
            "ct", in_channels=2, out_channels=3, kernel_size=3, stride=2, padding=1, output_padding=1
        ),
        "shape": (2, 3, 2),
        "reference": lambda p, x: spread(p, "ct", x, (2,), [(1, 1)], (1,)),
        "leaves": leaves("ct"),
    },
    "conv_transpose2d": {
        "layer": lambda: ConvTranspose2D(
            "spread", in_channels=4, out_channels=2, kernel_size=2, stride=(3, 1), dilation=(1, 2), groups=2
        ),
        "shape": (1, 2, 2, 4),
        "reference": lambda p, x: spread(p, "spread", x, (3, 1), [(0, 0), (0, 0)], dilation=(1, 2), groups=2),
        "leaves": leaves("spread"),
    },
    "conv_transpose3d": {
        "layer": lambda: ConvTranspose3D("grown", in_channels=1, out_channels=2, kernel_size=2, stride=2),
        "shape": (1, 1, 2, 2, 1),
        "reference": lambda p, x: spread(p, "grown", x, (2, 2, 2), [(0, 0)] * 3),
        "leaves": leaves("grown"),
    },
}
