"""Dropout: its masks, its scale, its gradient, and what prediction computes."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import Dropout, Input
from ptml_state import Role

PYTHON = Mode(linker="py", optimizer="fast_compile")


def _program(p=0.5, shape=(None, None), outputs=None, **options):
    X = Input("X", shape)
    return ptml.function([X], Dropout("drop", p=p)(X), seed=0, mode=PYTHON, **options)


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_elements_are_dropped_with_probability_p_and_the_others_scaled_up(p):
    y = _program(p)(np.ones((200, 500)))
    assert set(np.unique(y)) == {0.0, 1 / (1 - p)}
    assert abs((y == 0).mean() - p) < 4 * np.sqrt(p * (1 - p) / y.size)


def test_the_mean_is_kept():
    # The standard error of a mean of a million draws of 0 or 2 is 0.001.
    assert abs(_program()(np.ones((1000, 1000))).mean() - 1) < 0.005


def test_each_call_draws_another_mask_and_the_key_moves():
    program = _program()
    x = np.ones((4, 50))
    before = program.state["drop/key"]
    first, second = program(x), program(x)
    assert not np.array_equal(first, second)
    assert not np.array_equal(before, program.state["drop/key"])


def test_a_second_program_over_the_store_continues_the_stream():
    X = Input("X", (None, 50))
    Y = Dropout("drop")(X)
    first = ptml.function([X], Y, seed=0, mode=PYTHON)
    second = ptml.function([X], Y, state=first, mode=PYTHON)
    alone = ptml.function([X], Y, seed=0, mode=PYTHON)
    x = np.ones((4, 50))
    masks = [first(x), second(x), first(x)]
    for got, wanted in zip(masks, [alone(x), alone(x), alone(x)], strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_two_applications_in_one_graph_draw_two_masks():
    X = Input("X", (None, 50))
    drop = Dropout("drop")
    one, other = ptml.function([X], [drop(X), drop(X)], seed=0, mode=PYTHON)(np.ones((4, 50)))
    assert not np.array_equal(one, other)


def test_the_gradient_goes_through_the_mask_that_was_drawn():
    X = Input("X", (None, None))
    Y = Dropout("drop", p=0.25)(X)
    y, gradient = ptml.function([X], [Y, pytensor.grad(Y.sum(), X)], seed=0, mode=PYTHON)(np.ones((10, 20)))
    np.testing.assert_array_equal(y, gradient)


def test_what_is_dropped_is_zero_also_where_it_was_not_finite():
    x = np.array([[np.nan, np.inf, -np.inf] * 30])
    y = _program()(x)
    assert set(np.unique(y[y == y])) == {-np.inf, 0.0, np.inf}
    assert 0 < np.isnan(y).sum() < 30


def test_prediction_gives_the_input_back_and_needs_no_state():
    X = Input("X", (None, 3))
    predict = ptml.compile_predict(Dropout("drop", p=0.9)(X), compile_kwargs={"mode": PYTHON})
    x = np.random.default_rng(0).normal(size=(2, 3))
    np.testing.assert_array_equal(predict(x), x)


def test_at_zero_nothing_is_drawn():
    drop = Dropout("drop", p=0)
    assert drop.key is None
    assert ptml.slots(drop) == ()
    X = Input("X", (None, 3))
    np.testing.assert_array_equal(
        ptml.function([X], drop(X), mode=PYTHON)([[1.0, 2.0, 3.0]]), [[1.0, 2.0, 3.0]]
    )


def test_it_declares_a_generator():
    (key,) = ptml.slots(Dropout("drop"))
    assert (key.slot.address, key.slot.role) == ("drop/key", Role.GENERATOR)


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_is_the_inputs(floatX, dtype):
    with pytensor.config.change_flags(floatX=floatX):
        X = Input("X", (None, 3), dtype=dtype)
        Y = Dropout("drop", p=0.3)(X)
        assert Y.type.dtype == dtype
        assert pytensor.grad(Y.sum(), X).type.dtype == dtype


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"drop \(Dropout\) computes .*int64"):
        Dropout("drop")(pt.matrix("X", dtype="int64"))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), float("inf")])
def test_what_is_no_probability_is_refused_by_name(p):
    with pytest.raises(ValueError, match=rf"drop \(Dropout\): p must be a probability in \[0, 1\); got {p}"):
        Dropout("drop", p=p)


def test_the_spelling_of_torch_is_refused_with_what_to_write():
    with pytest.raises(
        TypeError, match=r"Dropout's `name` must be a string; got 0\.1\. Write Dropout\(p=0\.1\)"
    ):
        Dropout(0.1)
    with pytest.raises(TypeError, match=r"Write Dropout\('drop', p=0\.1\)"):
        Dropout("drop", 0.1)
    with pytest.raises(TypeError, match=r"p must be a probability in \[0, 1\); got '0\.1'"):
        Dropout("drop", p="0.1")


def test_a_dropout_is_a_value_and_its_key_is_its_own():
    drop = Dropout("drop", p=0.1)
    for twin in (pickle.loads(pickle.dumps(drop)), attrs.evolve(drop), eval(repr(drop))):
        assert twin == drop
        assert repr(twin) == repr(drop) == "Dropout('drop', p=0.1)"
        assert twin.key is not drop.key


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_every_backend_draws_the_same_mask(backend, float32):
    X = Input("X", (None, 33))
    Y = Dropout("drop", p=0.25)(X)
    x = np.ones((7, 33), "float32")
    program = ptml.function([X], Y, seed=3, backend=backend)
    reference = ptml.function([X], Y, seed=3, mode=PYTHON)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(program(x)), reference(x))
