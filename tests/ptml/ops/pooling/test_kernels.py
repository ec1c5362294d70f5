"""The kernels of pooling and resizing against the graphs that define their ops, wherever operands lie."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.backends.numba.plan import PLAN
from ptml.fused import Fused
from ptml.ops.pooling import (
    AveragePool,
    AveragePoolGradient,
    Even,
    MaxPool,
    MaxPoolGradient,
    MaxPoolPick,
    Sliding,
)
from ptml.ops.resizing import Resize, ResizeGradient

PYTHON = Mode(linker="py", optimizer="fast_compile")
NAN, INF = np.nan, np.inf
CLOSE = {"float32": {"rtol": 3e-6, "atol": 1e-6}, "float64": {"rtol": 1e-12, "atol": 1e-13}}

#: The shape of the data, and the windows of its spatial axes.
POOLED = {
    "tiles": ((3, 6, 4, 16), (Sliding(2, 2), Sliding(2, 2))),
    "tiles and a rest": ((2, 7, 5, 20), (Sliding(2, 2), Sliding(3, 3))),
    "gaps between": ((2, 8, 9, 5), (Sliding(2, 3), Sliding(2, 4))),
    "overlapping": ((2, 6, 7, 17), (Sliding(3, 2, 1, 1, 1), Sliding(3, 1))),
    "holes": ((2, 9, 8, 3), (Sliding(3, 1, 2), Sliding(2, 3, 3, 1, 2))),
    "uneven": ((2, 7, 5, 4), (Even(3), Even(4))),
    "fewer than asked for": ((1, 2, 3, 2), (Even(5), Even(3))),
    "one axis": ((2, 9, 33), (Sliding(4, 4),)),
    "three axes": ((2, 4, 5, 6, 3), (Sliding(2, 2), Sliding(3, 1), Sliding(2, 2, before=1))),
    "large windows": ((1, 12, 11, 2), (Sliding(7, 5), Even(1))),
    "padding that is not counted": (
        (2, 5, 5, 4),
        (Sliding(3, 2, 1, 1, 1, (0, 0)), Sliding(2, 2, after=1, counted=(0, 0))),
    ),
    "no examples": ((0, 4, 4, 3), (Sliding(2, 2), Sliding(2, 2))),
    "no channels": ((2, 4, 4, 0), (Sliding(2, 2), Sliding(2, 2))),
    "windows of padding alone": ((1, 1, 2), (Sliding(2, 1, 4, 3, 3),)),
}


def ran(outputs, given, mode):
    f = pytensor.function(list(given), outputs, mode=mode)
    return f(*given.values())


def stayed(outputs, inputs):
    """Give the fused ops that the plan has kernels for."""
    f = pytensor.function(inputs, outputs, mode=PLAN)
    return {type(node.op) for node in f.maker.fgraph.apply_nodes if isinstance(node.op, Fused)}


def drawn(shape, dtype, seed, special=()):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, shape).astype(dtype)
    for value in special:
        x.flat[rng.integers(0, max(x.size, 1), x.size // 9)] = value
    return x


LAYOUTS = {
    "in a row": lambda x: x,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[:, ::-1][:, ::-1],
    "turned": np.asfortranarray,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", POOLED)
def test_pooling(name, dtype):
    shape, windows = POOLED[name]
    pooled = MaxPool(windows).pooled_shape(shape)
    X = pt.tensor("X", dtype=dtype, shape=(None,) * len(shape))
    G, V = X.type("G"), X.type("V")
    largest, places = MaxPool(windows)(X)
    outputs = [
        largest,
        places,
        MaxPoolGradient(windows)(X, places, G),
        MaxPoolPick(windows)(X, places, V),
        AveragePool(windows)(V),
        AveragePoolGradient(windows)(V, G),
    ]
    for layout in LAYOUTS.values() if name in ("tiles", "overlapping") else (LAYOUTS["in a row"],):
        given = {
            X: layout(drawn(shape, dtype, 0, (NAN, -INF, INF))),
            G: layout(drawn(pooled, dtype, 1)),
            V: layout(drawn(shape, dtype, 2)),
        }
        for k, (got, right) in enumerate(
            zip(ran(outputs, given, PLAN), ran(outputs, given, PYTHON), strict=True)
        ):
            assert got.dtype == right.dtype
            np.testing.assert_allclose(got, right, **CLOSE[dtype], err_msg=str(k))
    assert stayed(outputs, [X, G, V]) == {
        MaxPool,
        MaxPoolGradient,
        MaxPoolPick,
        AveragePool,
        AveragePoolGradient,
    }


RESIZED = {
    "nearest, larger": ((2, 3, 5), 1, ("nearest", 7)),
    "nearest, smaller": ((2, 7, 5), 1, ("nearest", 3)),
    "nearest, by a factor": ((2, 3, 4, 3), 2, ("nearest", 0, 3)),
    "linear": ((2, 3, 4, 17), 1, ("linear", 5)),
    "linear by a factor, smaller after": ((3, 4, 1), 1, ("linear", 0, 2, True)),
    "linear to one": ((2, 5, 2), 1, ("linear", 1, 0, True)),
    "linear from one": ((2, 1, 2), 1, ("linear", 4)),
    "cubic": ((2, 3, 5, 4), 2, ("cubic", 8)),
    "cubic at the corners": ((2, 6, 4), 1, ("cubic", 4, 0, True)),
    "the last axis": ((3, 4), 1, ("cubic", 9)),
    "the first axis": ((3, 4), 0, ("linear", 7)),
    "no examples": ((0, 3, 2), 1, ("linear", 5)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RESIZED)
def test_resizing(name, dtype):
    shape, axis, how = RESIZED[name]
    op, back = Resize(axis, *how), ResizeGradient(axis, *how)
    X = pt.tensor("X", dtype=dtype, shape=(None,) * len(shape))
    G = X.type("G")
    outputs = [op(X), back(X, G)]
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=shape).astype(dtype), rng.normal(size=op.resized(shape)).astype(dtype)
    x.flat[:1], g.flat[-1:] = NAN, INF
    for layout in LAYOUTS.values():
        given = {X: layout(x), G: layout(g)}
        for got, right in zip(ran(outputs, given, PLAN), ran(outputs, given, PYTHON), strict=True):
            np.testing.assert_allclose(got, right, **CLOSE[dtype])
    assert stayed(outputs, [X, G]) == {Resize, ResizeGradient}


@pytest.mark.parametrize("windows", [(Sliding(2, 2),) * 2, (Sliding(3, 2, 1, 1, 1), Even(5))])
def test_no_number_depends_on_how_many_threads_there_are(windows):
    shape = (32, 24, 24, 16)
    X = pt.tensor("X", dtype="float32", shape=shape)
    largest, places = MaxPool(windows)(X)
    mean = AveragePool(windows)(X)
    outputs = [
        largest,
        MaxPoolGradient(windows)(X, places, mean),
        mean,
        AveragePoolGradient(windows)(X, mean),
        Resize(1, "linear", factor=2)(X),
    ]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    before, found = ptml.get_threads(), []
    try:
        for n in (1, 2, 3):
            ptml.set_threads(n)
            found.append(ran(outputs, {X: x}, PLAN))
    finally:
        ptml.set_threads(before)
    for more in found[1:]:
        for one, other in zip(found[0], more, strict=True):
            np.testing.assert_array_equal(one, other)


def test_windows_that_are_none_raise():
    with pytest.raises(TypeError, match="windows must be a tuple of Sliding and Even"):
        MaxPool(((2, 2),))
    with pytest.raises(ValueError, match="size"):
        Sliding(0)
    with pytest.raises(ValueError, match="Give either a size or a factor"):
        Resize(1, "linear")
    with pytest.raises(ValueError, match="got size=3 and factor=2"):
        Resize(1, "linear", 3, 2)
