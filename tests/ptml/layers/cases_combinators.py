"""Lines of the conformance table for layers around layers, with references from the definitions."""

from __future__ import annotations

import numpy as np

from ptml.activations import Tanh
from ptml.bits import folded_key, numbers
from ptml.layers import BatchNorm, Checkpoint, Dropout, Linear, Scanned, Sequential, WeightNorm


def linear(p, name, x):
    return x @ p[f"{name}/W"] + p[f"{name}/b"]


def batch_norm(x, scale, b):
    axes = tuple(range(x.ndim - 1))
    centred = x - x.mean(axes)
    return centred / np.sqrt((centred**2).mean(axes) + 1e-5) * scale + b


def kept(key, p, shape):
    words = numbers([*map(int, key), 0, 0], 0, int(np.prod(shape)), "uint32")
    return (words < (1 - p) * 2**32).reshape(shape)


def weight_normalized(name, axis):
    def reference(p, x):
        W, g = p[f"{name}/W"], p[f"{name}/weight_norm/g"]
        return x @ (g * W / np.sqrt((W**2).sum(axis))) + p[f"{name}/b"]

    return reference


def checkpointed(p, x):
    y = np.tanh(linear(p, "ck", x))
    y = np.where(kept(p["ckd/key"][:2], 0.25, y.shape), y / 0.75, 0.0)
    return linear(p, "ck2", batch_norm(y, p["ckn/scale"], p["ckn/b"]))


def checkpointed_predicted(p, x):
    y = np.tanh(linear(p, "ck", x)) - p["ckn/running_mean"]
    return linear(p, "ck2", y / np.sqrt(p["ckn/running_var"] + 1e-5) * p["ckn/scale"] + p["ckn/b"])


def scanned(dropped):
    def reference(p, x):
        for k in range(3):
            x = np.tanh(x @ p["stack/fc/W"][k] + p["stack/fc/b"][k])
            if dropped:
                mask = kept(folded_key(p["stack/drop/key"].tolist(), k), 0.25, x.shape)
                x = np.where(mask, x / 0.75, 0.0)
        return x

    return reference


CASES = {
    "weight_norm": {
        "layer": lambda: WeightNorm(Linear("wn", n_in=3, n_out=2)),
        "shape": (4, 3),
        "reference": weight_normalized("wn", 0),
        "leaves": ("wn/weight_norm/g", "wn/W", "wn/b"),
    },
    "weight_norm_of_the_whole": {
        "layer": lambda: WeightNorm(Linear("whole", n_in=3, n_out=2), axis=None),
        "shape": (4, 3),
        "reference": weight_normalized("whole", None),
        "leaves": ("whole/weight_norm/g", "whole/W", "whole/b"),
    },
    "checkpoint": {
        "layer": lambda: Checkpoint(
            Linear("ck", n_in=3, n_out=2),
            Tanh(),
            Dropout("ckd", p=0.25),
            BatchNorm("ckn", n_in=2),
            Linear("ck2", n_in=2, n_out=2),
        ),
        "shape": (5, 3),
        "reference": checkpointed,
        "predicted": checkpointed_predicted,
        "leaves": (
            *("ck/W", "ck/b", "ckd/key", "ckn/scale", "ckn/b", "ckn/running_mean", "ckn/running_var"),
            *("ck2/W", "ck2/b"),
        ),
        "smallest": (2, 3),
        "takes_none": False,
    },
    "scanned": {
        "layer": lambda: Scanned(
            3, Sequential(Linear("fc", n_in=2, n_out=2), Tanh(), Dropout("drop", p=0.25), name="stack")
        ),
        "shape": (4, 2),
        "reference": scanned(True),
        "predicted": scanned(False),
        "leaves": ("stack/fc/W", "stack/fc/b", "stack/drop/key"),
    },
}
