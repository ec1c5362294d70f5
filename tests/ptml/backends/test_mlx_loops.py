"""Loops on MLX, which has none: their gradients, loops within loops, and ends that are found as they run."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.scan.utils import until

import ptml
from ptml.layers import BatchNorm, Dropout, Input, Linear
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import compile_train, sgd

pytestmark = [pytest.mark.backends("mlx"), pytest.mark.usefixtures("float32", "no_compiler")]

PLAIN = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture
def no_compiler():
    with pytensor.config.change_flags(cxx=""):
        yield


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(6, 3)).astype("float32")


def agree(inputs, outputs, values, backend):
    expected = ptml.function(inputs, outputs, seed=0, mode=PLAIN)(*values)
    found = ptml.function(inputs, outputs, seed=0, backend=backend)(*values)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_loops_of_every_kind_and_their_gradients_are_what_they_are_elsewhere(backend, x):
    X = pt.fmatrix("X")  # of a length that is known when it is called
    running = ptml.scan(lambda a, b: pt.tanh(a + b), sequences=X, outputs_info=pt.zeros(3, dtype="float32"))
    two_back = ptml.scan(
        lambda a, b: a + 0.5 * b, outputs_info=[{"initial": X[:2], "taps": [-2, -1]}], n_steps=7
    )
    fresh = ptml.scan(lambda a: a**2, sequences=X, go_backwards=True)
    nested = ptml.scan(
        lambda row: ptml.scan(lambda c, d: c * d, sequences=row, outputs_info=pt.ones((), dtype="float32")),
        sequences=X,
    )
    outputs = [running, running[-1], two_back, two_back[-1], fresh, nested]
    losses = [(running**2).sum(), (running[-1] ** 2).sum(), (two_back**2).sum(), fresh.sum(), nested.sum()]
    agree([X], [*outputs, *(pytensor.grad(loss, X) for loss in losses)], [x], backend)


def test_a_loop_of_no_steps_gives_nothing(backend, x):
    X = pt.fmatrix("X")
    sums = ptml.scan(lambda a, b: a + b, sequences=X, outputs_info=pt.zeros(3, dtype="float32"))
    assert ptml.function([X], sums, backend=backend)(x[:0]).shape == (0, 3)
    fresh = ptml.scan(lambda a: pt.stack([a, a]), sequences=X)
    assert ptml.function([X], fresh, backend=backend)(x[:0]).shape == (0, 2, 3)


def test_a_loop_ends_when_its_condition_holds(backend, x):
    X = pt.fmatrix("X")
    doubled = ptml.scan(lambda b: (2 * b, until(b.sum() > 20)), outputs_info=X[0] ** 2, n_steps=30)
    agree([X], [doubled, doubled[-1]], [x], backend)


def test_a_recurrent_network_trains(backend):
    fc, drop, bn = Linear("fc", n_in=2, n_out=3), Dropout("drop", p=0.2), BatchNorm("bn", n_in=3)
    X = Input("X", shape=(None, 4, 2))
    hidden = ptml.scan(
        lambda now, before: pt.tanh(drop(bn(fc(now) + before))),
        sequences=X,
        outputs_info=pt.zeros((4, 3), dtype="float32"),
    )
    loss, _ = supervised_loss(Linear("out", n_in=3, n_out=1)(hidden[-1]), SquaredError())
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=size).astype("float32") for size in ((5, 4, 2), (4, 1))]
    here = compile_train(loss, sgd(0.1), seed=0, backend=backend)
    there = compile_train(loss, sgd(0.1), seed=0, compile_kwargs={"mode": PLAIN})
    for _ in range(3):
        np.testing.assert_allclose(here(*batch), there(*batch), rtol=1e-5)
    for address, value in there.state.items():
        np.testing.assert_allclose(here.state[address], value, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_written_out_is_refused_with_what_to_do(backend, x):
    X, n = pt.fmatrix("X"), pt.iscalar("n")
    longer = ptml.scan(lambda b: 2 * b, outputs_info=X[0], n_steps=n)
    with pytest.raises(TypeError, match=r"number of steps of .* is computed from values at run time"):
        ptml.function([X, n], longer[-1], backend=backend)(x, np.int32(3))
    long = ptml.scan(lambda b: 1.01 * b, outputs_info=X[0], n_steps=30_000)
    with pytest.raises(ValueError, match=r"30000 steps of \d+ operations in .* Use another backend"):
        ptml.function([X], long, backend=backend)(x)
