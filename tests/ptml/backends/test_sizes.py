"""Sizes that follow from shapes are numbers while JAX traces a program."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.backends.modes import backend_for
from ptml.backends.sizes import Size, SizeArithmetic

pytestmark = pytest.mark.backends("jax")


def run(backend, inputs, outputs, *given):
    engine = backend_for(backend)
    engine.load()
    with engine.context():
        f = pytensor.function(inputs, outputs, mode=engine.mode)
        return f, f(*given)


def test_the_gradient_of_a_loop_runs_whatever_its_length(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float64")
    start = pt.zeros((x.shape[1],))
    h = pytensor.scan(lambda x_t, h: 0.5 * h + x_t, x, outputs_info=[start], return_updates=False)
    first = pytensor.grad((h[-1] ** 2).sum(), x)
    second = pytensor.grad((first**2).sum(), x)
    f, (slope, _) = run(backend, [x], [first, second], np.ones((3, 1)))
    np.testing.assert_allclose(slope[:, 0], 2 * 1.75 * np.array([0.25, 0.5, 1.0]))
    slope, _ = f(np.ones((2, 1)))
    np.testing.assert_allclose(slope[:, 0], 2 * 1.5 * np.array([0.5, 1.0]))


def test_a_size_may_be_the_least_of_several(backend):
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    n = pt.minimum(x.shape[0], y.shape[0])
    f, result = run(backend, [x, y], x[:n] + y[:n], np.ones(3), np.arange(5.0))
    np.testing.assert_array_equal(result, [1.0, 2.0, 3.0])
    assert any(isinstance(node.op, SizeArithmetic | Size) for node in f.maker.fgraph.apply_nodes)


def test_numbers_that_are_computed_are_computed_by_jax(backend):
    n, x = pt.lscalar("n"), pt.vector("x", dtype="float64")
    _, result = run(backend, [n, x], [pt.maximum(n, 3) + x.shape[0], x[n]], np.int64(2), np.arange(4.0))
    assert int(result[0]) == 7
    assert float(result[1]) == 2.0
