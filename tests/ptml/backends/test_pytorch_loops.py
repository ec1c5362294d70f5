"""Loops and slices that go backwards on PyTorch, which PyTensor has no conversions for."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.utils import until

import ptml

pytestmark = pytest.mark.backends("pytorch")


def test_a_loop_and_its_first_and_second_derivatives(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float64")
    start = pt.zeros((x.shape[1],))
    h = ptml.scan(lambda x_t, h: 0.5 * h + x_t, sequences=x, outputs_info=start, go_backwards=True)
    first = pytensor.grad((h[-1] ** 2).sum(), x)
    second = pytensor.grad((first**2).sum(), x)
    run = ptml.function([x], [h, first, second], backend=backend)
    states, slope, curvature = run(np.ones((3, 1)))
    np.testing.assert_allclose(states[:, 0], [1.0, 1.5, 1.75])
    weights = np.array([1.0, 0.5, 0.25])
    np.testing.assert_allclose(slope[:, 0], 2 * 1.75 * weights)
    np.testing.assert_allclose(curvature[:, 0], 8 * 1.75 * (weights**2).sum() * weights)


def test_a_loop_that_ends_by_itself_or_takes_no_step(backend):
    x = pt.vector("x", dtype="float64")
    doubled = ptml.scan(lambda h: (2 * h, until(h > 10.0)), outputs_info=x[0], n_steps=20)
    fresh = ptml.scan(lambda a: pt.stack([a, a]), sequences=x)
    run = ptml.function([x], [doubled[-1], fresh], backend=backend)
    assert run(np.array([1.0]))[0] == 32.0
    nothing = ptml.function([x], fresh, backend=backend)(np.zeros(0))
    assert nothing.shape == (0, 2)


def test_slices_go_backwards_when_read_and_when_written(backend):
    x, n = pt.matrix("x", dtype="float64"), pt.lscalar("n")
    outputs = [x[::-1], x[:, ::-2], x[2:0:-1, 1], x[::-1, ::-1], x[n::-1], x[:0:-1][:0]]
    outputs += [x[::-1].inc(x), x[1, ::-2].set(np.arange(2.0)), x[:, ::-1][1:].set(np.arange(4.0))]
    given = np.arange(12.0).reshape(3, 4), np.int64(1)
    found = ptml.function([x, n], outputs, backend=backend)(*given)
    wanted = pytensor.function([x, n], outputs, mode=pytensor.compile.mode.Mode("py", "fast_compile"))(*given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
