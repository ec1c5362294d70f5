"""Shapes and ways of putting arrays together, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

RNG = np.random.default_rng(16)


def numbers(*shape, dtype="float64"):
    return (RNG.normal(size=shape) * 3).astype(dtype)


def test_views_of_views(same_on_both):
    x = pt.tensor3("x", dtype="float64")
    outputs = [
        x.T[::-1].reshape((-1,)), x.dimshuffle(2, "x", 0, 1)[1:], x.reshape((x.shape[0], -1)).T,
        x.ravel()[::2], x.squeeze() + 0, x[:, 0].T[None] * 2,
        pt.moveaxis(x, 0, 2).flatten(2), pt.atleast_3d(x[0, 0]), pt.shape_padright(x, 2), x.swapaxes(0, 1),
    ]  # fmt: skip
    same_on_both(
        [x], outputs, [numbers(2, 3, 4)], [np.asfortranarray(numbers(3, 2, 4))], [numbers(4, 3, 2).T]
    )


def test_shapes_as_numbers(same_on_both):
    x, y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="int8")
    outputs = [
        x.shape, x.shape[0] * y.shape[0], x.size, pt.zeros_like(x), pt.ones((x.shape[1], 2)),
        pt.full((2, y.shape[0]), 7.5), pt.arange(y.shape[0]) + y, pt.eye(x.shape[0], k=1), pt.tri(y.shape[0]),
        pt.broadcast_to(y, (2, y.shape[0])), x.reshape(x.shape[::-1]), pt.alloc(y[0], x.shape[0]),
    ]  # fmt: skip
    same_on_both([x, y], outputs, [numbers(3, 2, dtype="f4"), np.arange(4, dtype="i1")])
    same_on_both([x], [x.shape, x.size, pt.zeros_like(x)], [np.zeros((0, 4), "f4")], [np.zeros((4, 0), "f4")])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_joining_and_splitting(same_on_both, axis):
    x, y, z = (pt.tensor3(name, dtype=dtype) for name, dtype in zip("xyz", ("f8", "f4", "i2"), strict=True))
    a, b = pt.split(x, [1, 2], axis=axis)
    outputs = [
        pt.concatenate([x, y, z], axis=axis), pt.stack([x, y], axis=axis), a * 2, b, pt.roll(x, 1, axis),
        pt.concatenate([a, b], axis=axis), pt.flip(x, axis), pt.repeat(x, 2, axis),
        pt.repeat(x, [2, 0, 1], axis), pt.tile(x, (2, 1, 2)), pt.diff(x, axis=axis),
        pt.grad((pt.concatenate([x, x], axis=axis) ** 2)[1:].sum(), x),
        pt.grad((pt.repeat(x, [2, 0, 1], axis) ** 3).sum(), x),
    ]  # fmt: skip
    call = [numbers(3, 3, 3), numbers(3, 3, 3, dtype="f4"), np.ones((3, 3, 3), "i2")]
    same_on_both([x, y, z], outputs, call, [np.asfortranarray(call[0]), call[1][::-1], call[2].T], rtol=1e-6)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding(same_on_both, mode):
    x = pt.matrix("x", dtype="float64")
    padded = pt.pad(x, ((1, 2), (0, 1)), mode=mode)
    same_on_both([x], [padded, pt.grad((padded**2).sum(), x)], [numbers(4, 3)], [numbers(3, 4).T])


def test_sizes_that_are_numbers_of_a_call_run_in_python(same_on_both):
    x, n = pt.vector("x", dtype="float64"), pt.scalar("n", dtype="int64")
    outputs = [pt.zeros((n, 2)), pt.arange(n), x.reshape((n, -1)), x[:n], pt.alloc(x, n, x.shape[0])]
    same_on_both([x, n], outputs, [numbers(6), np.int64(2)], [numbers(6), np.int64(3)], kernels=False)


WRONG = {
    "reshape": (lambda x: x.reshape((5, -1)), (2, 3)),
    "join": (lambda x: pt.concatenate([x, x.T], axis=0), (2, 3)),
    "specified": (lambda x: pt.specify_shape(x, (None, 2)), (2, 3)),
    "squeezed": (lambda x: pt.specify_broadcastable(x, 0)[0], (2, 3)),
    "split": (lambda x: pt.split(x, [1, 1])[0], (3, 3)),
    "stretched": (lambda x: pt.alloc(x, 2, 3), (3, 3)),
    "repeated": (lambda x: pt.repeat(x, [1, 2], axis=0), (3, 3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_sizes_that_do_not_fit_raise(fails_alike, name):
    make, shape = WRONG[name]
    x = pt.matrix("x", dtype="float64")
    fails_alike([x], make(x), None, [np.ones(shape)])
