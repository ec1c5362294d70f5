"""JAX programs: the state is donated, and nothing that anybody holds changes or is lost by it."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import ptml
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, compile_train, sgd
from ptml_state import Role, Slot

jax = pytest.importorskip("jax")

x, t = np.linspace(-1, 1, 12).reshape(4, 3), np.ones((4, 2))


@pytest.fixture
def net():
    return Sequential(
        Linear("fc", n_in=3, n_out=5),
        BatchNorm("bn", n_in=5),
        Dropout("drop", p=0.5),
        Linear("out", n_in=5, n_out=2),
    )


@pytest.fixture
def loss(net):
    return supervised_loss(net(Input("X", (None, 3))), SquaredError())[0]


def cells(program):
    return [cell.container.storage[0] for cell in program.store._cells.values()]


def zeros(rng, shape, dtype):
    return np.zeros(shape, dtype)


def test_updated_leaves_are_donated_and_stay_on_the_device(loss):
    step = compile_train(loss, adam(1e-2), seed=0, backend="jax")
    step(x, t)
    before = cells(step)
    step(x, t)
    assert all(isinstance(cell, jax.Array) for cell in cells(step))
    assert all(old.is_deleted() for old in before)


def test_a_training_run_is_the_one_of_the_python_linker(loss):
    # Not Adam, which makes steps of the gradients of zero that a bias before a batch norm has.
    step = compile_train(loss, sgd(0.1, momentum=0.9), seed=0, backend="jax")
    other = compile_train(
        loss, sgd(0.1, momentum=0.9), state=step.state, compile_kwargs={"mode": "FAST_COMPILE"}
    )
    for _ in range(5):
        np.testing.assert_allclose(step(x, t), other(x, t), rtol=1e-12)
    for address, value in step.state.items():
        np.testing.assert_allclose(value, other.state[address], rtol=1e-9, atol=1e-9)
        assert value.dtype == other.state[address].dtype


def test_snapshots_and_results_outlive_the_steps_after_them(loss, net):
    step = compile_train(loss, sgd(0.1), seed=0, backend="jax", extra_outputs=[net[0].W, net[0].W + 0])
    first = step(x, t)
    snapshot = step.state
    kept = {address: value.copy() for address, value in snapshot.items()}
    shown = [value.copy() for value in first]
    for _ in range(3):
        step(x, t)
    for value, copy in zip(first, shown, strict=True):
        np.testing.assert_array_equal(value, copy)
    for address, copy in kept.items():
        np.testing.assert_array_equal(snapshot[address], copy)
    assert snapshot != step.state


def test_programs_of_one_store_see_each_others_new_arrays(net):
    X = Input("X", (None, 3))
    loss, _ = supervised_loss(net(X), SquaredError())
    step = compile_train(loss, sgd(0.1), seed=0, backend="jax")
    predict = ptml.compile_predict(net(X), state=step, backend="jax")
    elsewhere = ptml.compile_predict(net(X), state=step, backend="c")
    seen = []
    for _ in range(3):
        step(x, t)
        seen.append(predict(x))
        np.testing.assert_allclose(seen[-1], elsewhere(x), rtol=1e-10)
    assert not np.allclose(seen[0], seen[-1])


def test_values_may_be_set_between_steps(loss):
    step = compile_train(loss, sgd(0.1), seed=0, backend="jax")
    start = step.state
    losses = [step(x, t), step(x, t)]
    step.store.load(start)
    assert [step(x, t), step(x, t)] == losses
    step.store.set({"fc/W": 0.0})
    np.testing.assert_array_equal(step.state["fc/W"], 0.0)
    step(x, t)


def test_two_leaves_of_one_new_value_and_a_swap_are_right():
    v = pt.dvector("v")
    a, b, c = (Slot(name, Role.OPTIMIZER, "float64", (2,), zeros).handle for name in "abc")
    program = ptml.function(
        [v], a + b + c, updates={a: v + b, b: v + b, c: a}, seed=0, backend="jax", on_unused_input="ignore"
    )
    for k in range(3):
        before = {address: value.copy() for address, value in program.state.items()}
        value = np.array([1.0, k])
        np.testing.assert_array_equal(program(value), before["a"] + before["b"] + before["c"])
        after = program.state
        np.testing.assert_array_equal(after["a"], value + before["b"])
        np.testing.assert_array_equal(after["b"], value + before["b"])
        np.testing.assert_array_equal(after["c"], before["a"])


def test_no_warning_of_buffers_reaches_a_user(loss):
    forgotten = Slot("forgotten", Role.OPTIMIZER, "float64", (4,), zeros).handle
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = compile_train(loss, adam(1e-2), extra_updates={forgotten: pt.zeros(4)}, seed=0, backend="jax")
        step(x, t)
        step(x[:2], t[:2])


def test_an_input_that_does_not_fit_leaves_the_state_whole(loss):
    step = compile_train(loss, adam(1e-2), seed=0, backend="jax")
    step(x, t)
    before = step.state
    with pytest.raises(TypeError, match="X takes"):
        step(np.ones((4, 7)), t)
    with pytest.raises(Exception, match=r"shape|size|rows|got"):
        step(x, t[:3])
    assert step.state == before
    step(x, t)


def test_a_check_that_fails_leaves_the_state_whole():
    from pytensor.raise_op import CheckAndRaise

    v = pt.dvector("v")
    total = Slot("total", Role.OPTIMIZER, "float64", (2,), zeros).handle
    checked = CheckAndRaise(ArithmeticError, "negative")(v, pt.all(v >= 0))
    program = ptml.function([v], checked.sum(), updates={total: total + checked}, seed=0, backend="jax")
    program(np.ones(2))
    with pytest.raises(ArithmeticError, match="negative"):
        program(-np.ones(2))
    np.testing.assert_array_equal(program.state["total"], 1.0)
    program(np.ones(2))
    np.testing.assert_array_equal(program.state["total"], 2.0)


def test_an_error_of_a_call_back_into_python_leaves_the_state_whole():
    from pytensor.link.jax.dispatch import jax_funcify

    class Refuse(Op):
        __props__ = ()

        def make_node(self, v):
            return Apply(self, [v], [v.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0]

    def refuse(value):
        if value[0] < 0:
            raise ValueError("refused")
        return np.asarray(value)

    @jax_funcify.register(Refuse)
    def jax_refuse(op, **kwargs):
        return lambda v: jax.pure_callback(refuse, jax.ShapeDtypeStruct(v.shape, v.dtype), v)

    v = pt.dvector("v")
    total = Slot("total", Role.OPTIMIZER, "float64", (2,), zeros).handle
    program = ptml.function([v], v.sum(), updates={total: total + Refuse()(v)}, seed=0, backend="jax")
    program(np.ones(2))
    held = cells(program)
    program(np.ones(2))
    assert not any(cell.is_deleted() for cell in held)


def test_a_search_for_nans_leaves_the_state_whole():
    v = pt.dvector("v")
    total = Slot("total", Role.OPTIMIZER, "float64", (2,), zeros).handle
    program = ptml.function([v], pt.log(v).sum(), updates={total: total + v}, seed=0, backend="jax")
    program(np.ones(2))
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError):
            program(-np.ones(2))
    finally:
        jax.config.update("jax_debug_nans", False)
    np.testing.assert_array_equal(program.state["total"], 1.0)


def test_a_program_is_traced_once_for_each_shape(loss):
    step = compile_train(loss, sgd(0.1), seed=0, backend="jax")
    traced, compute = [], step.function.vm._compute
    step.function.vm._compute = lambda *inputs: (traced.append(1), compute(*inputs))[1]
    for _ in range(3):
        step(x, t)
    assert len(traced) == 1
    step(x[:2], t[:2])
    assert len(traced) == 2
