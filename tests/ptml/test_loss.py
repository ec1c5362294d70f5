"""The losses: closed forms, limits at infinite logits, labels that are wrong, and shapes that do not match."""

from __future__ import annotations

import copy
import functools
import importlib
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

from ptml.labels import CheckLabels
from ptml.loss import (
    AbsoluteError,
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    KLDivergence,
    Loss,
    SquaredError,
    supervised_loss,
)
from ptml.loss.softmax import Surprisal, surprisal

PY = Mode(linker="py", optimizer="fast_compile")
MODES = {"py": PY, "numba": "NUMBA", "c": "CVM", "jax": "JAX", "mlx": "MLX", "pytorch": "PYTORCH"}
INF, NAN = np.inf, np.nan
LN2 = np.log(2.0)

LOSSES = [
    SquaredError(),
    AbsoluteError(),
    Huber(),
    CrossEntropy(),
    CrossEntropy(expect_onehot_labels=True),
    BinaryCrossEntropy(),
    KLDivergence(),
]
NAMES = [repr(loss) for loss in LOSSES]

#: What every backend must give: (loss, prediction, target, value, gradient of the value's sum).
EXACT = {
    "squared": (SquaredError(), [[1.0, 2.0]], [[1.0, 5.0]], 4.5, [[0.0, -3.0]]),
    "absolute": (AbsoluteError(), [[1.0, 2.0, 9.0]], [[1.0, 5.0, 8.0]], 4 / 3, [[0.0, -1 / 3, 1 / 3]]),
    "huber": (Huber(delta=2.0), [[0.5, 3.0]], [[0.0, 0.0]], 2.0625, [[0.25, 1.0]]),
    "huber, each": (
        Huber(delta=2.0, reduction="none"),
        [[0.5, 3.0, -2.0, 2.0, 1e30, -INF]],
        [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
        [[0.125, 4.0, 2.0, 2.0, 2e30, INF]],
        [[0.5, 2.0, -2.0, 2.0, 2.0, -2.0]],
    ),
    "one-hot logits": (
        CrossEntropy(expect_onehot_labels=True, expect_logits=True, reduction="none"),
        [[0.0, -INF], [1e4, 0.0], [INF, 0.0], [INF, 0.0], [0.0, -INF], [INF, INF], [-1e4, -1e4]],
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.25, 0.75]],
        [0.0, 1e4, 0.0, INF, INF, LN2, LN2],
        [[0.0, 0.0], [1.0, -1.0], [0.0, 0.0], [1.0, -1.0], [1.0, -1.0], [-0.5, 0.5], [0.25, -0.25]],
    ),
    "one-hot probabilities": (
        CrossEntropy(expect_onehot_labels=True, reduction="none"),
        [[1.0, 0.0], [0.25, 0.75], [1.0, 0.0]],
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]],
        [0.0, -0.5 * np.log(0.1875), INF],
        [[-1.0, 0.0], [-2.0, -2 / 3], [0.0, -INF]],
    ),
    "labels": (
        CrossEntropy(expect_logits=True, reduction="none"),
        [[1e4, 0.0], [0.0, -INF], [0.0, INF], [3.0, 3.0]],
        [1, 0, 1, 0],
        [1e4, 0.0, 0.0, LN2],
        [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-0.5, 0.5]],
    ),
    "labels, probabilities": (
        CrossEntropy(reduction="sum"),
        [[1.0, 0.0], [0.5, 0.5]],
        [0, 1],
        LN2,
        [[-1.0, 0.0], [0.0, -2.0]],
    ),
    "ignored": (
        CrossEntropy(expect_logits=True, ignore_label=-100),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [NAN, 5.0, -INF], [-INF, -INF, -INF]],
        [0, 1, -100, -100],
        0.36064536674416836,
        [
            *((scipy.special.softmax([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]], -1) - np.eye(3)[:2]) / 2),
            np.zeros(3),
            np.zeros(3),
        ],
    ),
    "all ignored": (
        CrossEntropy(expect_logits=True, ignore_label=-100, class_weights=(1, 2, 4), label_smoothing=0.1),
        [[2.0, 0.0, -1.0], [INF, -INF, NAN]],
        [-100, -100],
        0.0,
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ),
    "weighted": (
        CrossEntropy(expect_logits=True, class_weights=(1, 2, 4)),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
        [0, 1],
        0.4242451491401293,
        None,
    ),
    "weighted, smoothed and ignored": (
        CrossEntropy(expect_logits=True, class_weights=(1, 2, 4), label_smoothing=0.1, ignore_label=9),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [NAN, 1.0, 2.0]],
        [0, 1, 9],
        0.6712543579418758,
        None,
    ),
    "smoothed": (
        CrossEntropy(expect_logits=True, label_smoothing=0.1),
        [[2.0, 1.0, 0.0, -1.0, 0.5]],
        [0],
        0.7244379396277961,
        None,
    ),
    "binary logits": (
        BinaryCrossEntropy(expect_logits=True, positive_weight=3.0, reduction="none"),
        [[0.0, 0.0, INF, -INF, 1e4, -1e4, INF, -INF, 40.0]],
        [[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]],
        [[LN2, 3 * LN2, 0.0, 0.0, 1e4, 3e4, INF, INF, 3 * np.exp(-40.0)]],
        [[0.5, -1.5, 0.0, 0.0, 1.0, -3.0, 1.0, -3.0, -3 * np.exp(-40.0)]],
    ),
    "binary probabilities": (
        BinaryCrossEntropy(reduction="none"),
        [[0.0, 1.0, 0.25, 0.5]],
        [[0.0, 1.0, 1.0, 0.5]],
        [[0.0, 0.0, 2 * LN2, LN2]],
        [[1.0, -1.0, -4.0, 0.0]],
    ),
    "divergence": (
        KLDivergence(reduction="none"),
        [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]],
        [[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]],
        [LN2, 0.0, 0.0],
        [[0.0, -2.0], [-1.0, -1.0], [-1.0, 0.0]],
    ),
    "divergence, logits": (
        KLDivergence(expect_logits=True, reduction="none"),
        [[0.0, 0.0], [0.0, INF], [-INF, 7.0]],
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]],
        [LN2, 0.0, 0.0],
        [[0.5, -0.5], [0.0, 0.0], [0.0, 0.0]],
    ),
}

FEW = ["huber, each", "one-hot logits", "weighted, smoothed and ignored", "binary logits"]


def mode_of(backend):
    if backend not in ("c", "py"):
        importlib.import_module(f"ptml.backends.{backend}").load()
    return MODES[backend]


def variable(value, dtype, name="x"):
    value = np.asarray(value)
    dtype = value.dtype if value.dtype.kind in "iub" else dtype
    return pt.tensor(name, dtype=str(dtype), shape=(None,) * value.ndim)


def graph(loss, prediction, target):
    """Give a loss, and its gradient, between two inputs of unknown shapes."""
    value = loss(prediction, target)
    return [value, pytensor.grad(value.sum(), prediction)]


def evaluate(loss, prediction, target, dtype="float64", mode=PY):
    """Give the value and the gradient of a loss of arrays."""
    inputs = [variable(prediction, dtype, "prediction"), variable(target, dtype, "target")]
    function = pytensor.function(inputs, graph(loss, *inputs), mode=mode)
    return function(np.asarray(prediction, inputs[0].dtype), np.asarray(target, inputs[1].dtype))


def value_of(*args, **kwargs):
    return evaluate(*args, **kwargs)[0]


@functools.cache
def computed(backend, dtype):
    """Compute `EXACT` by one compiled function, or what of it stands for the rest where compiling is slow."""
    names = list(EXACT) if backend in ("py", "jax") else FEW
    inputs, outputs, values = [], [], []
    for loss, prediction, target, *_ in map(EXACT.get, names):
        pair = [variable(prediction, dtype), variable(target, dtype)]
        inputs += pair
        outputs += graph(loss, *pair)
        values += [np.asarray(prediction, pair[0].dtype), np.asarray(target, pair[1].dtype)]
    found = [np.asarray(output) for output in pytensor.function(inputs, outputs, mode=mode_of(backend))(*values)]
    return dict(zip(names, zip(found[::2], found[1::2], strict=True), strict=True))


# -- values


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_backend_gives_the_exact_values_and_gradients(backend, dtype):
    if (backend, dtype) == ("mlx", "float64"):
        pytest.skip("MLX has no float64")
    tolerance = {"float64": 1e-12, "float32": 2e-6}[dtype]
    for name, (value, gradient) in computed(backend, dtype).items():
        expected, expected_gradient = EXACT[name][3:]
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=0, err_msg=name)
        if expected_gradient is not None:
            np.testing.assert_allclose(gradient, expected_gradient, rtol=tolerance, atol=1e-8, err_msg=name)
