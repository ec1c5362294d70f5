"""``program.pure``: the same program with its state handed in and out."""

from __future__ import annotations

import functools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import ReLU
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml_state import Role, State

PYTHON = Mode(linker="py", optimizer="fast_compile")


def described():
    """Give the loss of a network that has every role, a rule, and what was dropped."""
    with pytensor.config.change_flags(floatX="float32"):
        hidden = Sequential(Linear("fc1", n_in=5, n_out=6), BatchNorm("bn", n_in=6), Dropout("drop", p=0.3))
        noisy = hidden(Input("X", (None, 5)))
        logits = Linear("fc2", n_in=6, n_out=3)(ReLU()(noisy))
        loss, _ = supervised_loss(logits, CrossEntropy(expect_onehot_labels=False, expect_logits=True))
        return loss, chain(clip_by_global_norm(1.0), adam(cosine_schedule(0.05, 20))), pt.eq(noisy, 0)


@functools.cache
def step_on(backend):
    """Compile a training step, once for all tests of this file."""
    loss, rule, dropped = described()
    where = {"compile_kwargs": {"mode": PYTHON}} if backend == "python" else {"backend": backend}
    return compile_train(loss, rule, extra_outputs=[dropped], seed=0, **where)


def batches(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        yield rng.normal(size=(8, 5)).astype("float32"), rng.integers(0, 3, 8)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_it_equals_the_bound_call_bit_for_bit_and_leaves_the_given_state_as_it_was(backend):
    step = step_on(backend)
    state = step.state
    assert set(state.roles.values()) == set(Role) - {Role.CACHE}
    history = []
    for batch in batches(3):
        before = {address: value.copy() for address, value in state.items()}
        outputs, new = step.pure(state, *batch)
        bound = step(*batch)
        for pure, called in zip(outputs, bound, strict=True):
            assert type(pure) is np.ndarray
            assert pure.dtype == called.dtype
            np.testing.assert_array_equal(pure, called)
        assert new == step.state
        for address, value in before.items():
            np.testing.assert_array_equal(state[address], value)
            assert not np.array_equal(new[address], value), f"{address} did not move"
        history.append((state, batch, outputs, new))
        state = new
    # The first of the states is as good as it was.
    given, batch, outputs, new = history[0]
    again = step.pure(given, *batch)
    assert float(again[0][0]) == float(outputs[0])
    assert again[1] == new


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_it_never_touches_the_store(backend):
    step = step_on(backend)
    (batch,) = batches(1)
    step(*batch)
    before, residence = step.store.state, step.store.residence
    calls = step.timings.calls
    raw = [cell.get_value(borrow=True) for cell in step.store._cells.values()]
    other = ptml.init(described()[0], seed=5)
    _, new = step.pure(before | other, *batch)
    assert new != before
    assert step.store.state == before
    assert step.store.residence == residence
    assert step.timings.calls == calls
    # The cells hold the very arrays that they held, with what they held.
    assert all(a is c.get_value(borrow=True) for a, c in zip(raw, step.store._cells.values(), strict=True))


def test_leaves_that_the_program_does_not_know_pass_through():
    step = step_on("python")
    teacher = State({"teacher/W": np.arange(3.0)}, Role.STATISTIC)
    (batch,) = batches(1)
    alone = step.pure(step.state, *batch)[1]
    _, new = step.pure(teacher | step.state, *batch)
    assert list(new) == ["teacher/W", *step.state]
    assert new["teacher/W"] is teacher["teacher/W"]
    assert new.drop("teacher") == alone
    assert new.roles == (teacher | step.state).roles


def test_a_leaf_that_is_missing_is_named():
    step = step_on("python")
    (batch,) = batches(1)
    with pytest.raises(KeyError, match=r"lacks bn/running_mean, adam/step_count, which the program reads"):
        step.pure(step.state.drop("bn/running_mean").drop("adam/step_count"), *batch)


def test_a_leaf_of_another_shape_or_dtype_is_named():
    step = step_on("python")
    (batch,) = batches(1)
    for wrong, given in ((np.zeros(7, "float32"), r"float32\[7\]"), (np.zeros(6), r"float64\[6\]")):
        state = step.state.drop("fc1/b") | State({"fc1/b": wrong})
        with pytest.raises(TypeError, match=rf"has 'fc1/b' as {given}, where float32\[6\] is declared"):
            step.pure(state, *batch)


def test_a_wrong_input_is_named_as_by_a_call():
    step = step_on("python")
    (batch,) = batches(1)
    with pytest.raises(TypeError, match=r"X takes float32\[\?,5\]; got float64\[8,5\]\. Cast it"):
        step.pure(step.state, batch[0].astype("float64"), batch[1])


def test_a_prediction_gives_back_the_state_that_it_was_given(float32):
    X = Input("X", (None, 5))
    Y = Sequential(Linear("fc", n_in=5, n_out=2), BatchNorm("bn", n_in=2), Dropout("drop"))(X)
    state = ptml.init(Y, seed=0)
    predict = ptml.compile_predict(Y, state=state, compile_kwargs={"mode": PYTHON})
    x = np.ones((2, 5), "float32")
    outputs, new = predict.pure(state, x)
    np.testing.assert_array_equal(outputs, predict(x))
    assert new == state
    doubled = state.replace({"fc/W": lambda W: 2 * W})
    np.testing.assert_allclose(predict.pure(doubled, x)[0], 2 * outputs, rtol=1e-6)


def test_outputs_come_as_a_call_gives_them(float32):
    X = Input("X", (None,))
    Y = Dropout("drop")(X)
    x = np.ones(4, "float32")
    for outputs, kind in ((Y, np.ndarray), ([Y], list), ([Y, X], list)):
        program = ptml.function([X], outputs, seed=0, mode=PYTHON)
        assert type(program.pure(program.state, x)[0]) is kind
        assert type(program(x)) is kind
