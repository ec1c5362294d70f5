"""Loops that carry state: other draws in every iteration, statistics from each iteration to the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from pytensor.scan.utils import until

import ptml
from ptml.bits import folded_key, numbers
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.optim import compile_train, sgd
from ptml_state import Role, Slot

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Trail(ptml.Layer):
    """A statistic whose digits tell what it was applied to, in order."""

    @ptml.slot
    def s(self):
        return ptml.statistic((), Zeros())

    def build(self, x):
        return ptml.advance(x + self.s, {self.s: 10 * self.s + x})


class Cell(ptml.Layer):
    """A loop inside a layer."""

    inner: ptml.Layer

    def build(self, X):
        return ptml.scan(lambda x: self.inner(x), sequences=X)


@pytest.fixture(autouse=True)
def no_compiler() -> Iterator[None]:
    """Compile the inside of a loop for Python too: PyTensor compiles it to C else."""
    with pytensor.config.change_flags(cxx=""):
        yield


def compiled(outputs, inputs=None, **options):
    return ptml.function(inputs, outputs, seed=0, mode=PYTHON, **options)


def predicted(outputs, state, inputs=None):
    return ptml.compile_predict(outputs, inputs=inputs, state=state, compile_kwargs={"mode": PYTHON})


def test_it_loops_as_pytensors_does():
    x, n = pt.vector("x"), pt.lscalar("n")
    steps = {
        "sequence": lambda scan: scan(lambda a: a**2, sequences=x),
        "recurrence": lambda scan: scan(lambda a, b: a + b, sequences=x, outputs_info=pt.zeros(())),
        "power": lambda scan: scan(
            lambda b, a: a * b, outputs_info=pt.ones_like(x), non_sequences=x, n_steps=n
        ),
        "backwards": lambda scan: scan(
            lambda a, b: 2 * b + a, sequences=x, outputs_info=pt.zeros(()), go_backwards=True
        ),
        "taps": lambda scan: scan(
            lambda a, two, one: a + two + one,
            sequences=x,
            outputs_info=[{"initial": pt.constant(np.array([0.0, 1.0])), "taps": [-2, -1]}],
        ),
        "several": lambda scan: scan(
            lambda a, b: (a + b, a * b), sequences=[x], outputs_info=[pt.zeros(()), None]
        )[1],
    }
    for name, step in steps.items():
        wanted = step(lambda *args, **kwargs: pytensor.scan(*args, return_updates=False, **kwargs))
        results = ptml.function([x, n], [step(ptml.scan), wanted], mode=PYTHON, on_unused_input="ignore")(
            np.array([1.0, 2.0, 3.0]), 3
        )
        np.testing.assert_array_equal(results[0], results[1], err_msg=name)


def test_one_output_is_a_tensor_and_several_are_a_list():
    x = pt.vector("x")
    assert isinstance(ptml.scan(lambda a: a, sequences=x), pt.TensorVariable)
    assert len(ptml.scan(lambda a: a, sequences=x, return_list=True)) == 1
    assert len(ptml.scan(lambda a: (a, 2 * a), sequences=x)) == 2


def test_a_loop_may_end_early():
    x = pt.vector("x")
    trail = Trail("trail")
    y = ptml.scan(lambda a: (trail(a), until(a > 2)), sequences=x)
    program = compiled(y, [x])
    np.testing.assert_array_equal(program(np.array([1.0, 2.0, 3.0, 4.0])), [1.0, 3.0, 15.0])
    assert program.state["trail/s"] == 123.0


def test_every_iteration_draws_another_mask_and_every_call_others():
    X, drop = Input("X", (None, 16)), Dropout("drop", p=0.5)
    program = compiled(ptml.scan(lambda x: drop(x), sequences=X), [X])
    masks = np.concatenate([program(np.ones((6, 16))) for _ in range(3)])
    assert len({tuple(mask) for mask in masks}) == 18
    np.testing.assert_array_equal(program.state["drop/key"][2:], [3, 0])


def test_two_draws_in_a_step_and_one_outside_differ():
    X, drop = Input("X", (None, 16)), Dropout("drop", p=0.5)
    inside = ptml.scan(lambda x: (drop(x), drop(x)), sequences=X)
    program = compiled([*inside, drop(X)], [X])
    masks = [tuple(row) for result in program(np.ones((4, 16))) for row in result]
    assert len(set(masks)) == 12


def test_draws_in_loops_are_the_same_whatever_else_is_computed():
    X, drop = Input("X", (None, 16)), Dropout("drop", p=0.5)
    one = ptml.scan(lambda x: drop(x), sequences=X)
    other = ptml.scan(lambda x: drop(2 * x), sequences=X)
    alone, both = compiled(one, [X]), compiled([other, one], [X])
    x = np.ones((3, 16))
    np.testing.assert_array_equal(alone(x), both(x)[1])


@pytest.mark.parametrize("way", ["closed over", "handed in"])
def test_what_is_drawn_before_the_loop_is_one_value_for_all_iterations(way):
    X, drop = Input("X", (None, 16)), Dropout("drop", p=0.5)
    mask = drop(pt.ones((16,)))
    if way == "closed over":
        Y = ptml.scan(lambda x: x * mask * drop(x), sequences=X)
    else:
        Y = ptml.scan(lambda x, m: x * m * drop(x), sequences=X, non_sequences=[mask])
    kept, product = compiled([mask, Y], [X])(np.ones((5, 16)))
    assert (product[:, kept == 0] == 0).all()
    assert len({tuple(row) for row in product}) == 5
    assert 0 < (kept == 0).mean() < 1


def test_what_moved_before_the_loop_moves_once():
    X, bn = Input("X", (None, 2)), BatchNorm("bn", n_in=2)
    normal = bn(X)
    Y = ptml.scan(lambda i: normal[i] + bn.running_mean, sequences=pt.arange(X.shape[0]))
    program = compiled(Y, [X])
    x = np.array([[0.0, 2.0], [2.0, 6.0], [4.0, 1.0]])
    np.testing.assert_allclose(program(x), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-12)
    np.testing.assert_allclose(program.state["bn/running_mean"], 0.1 * x.mean(0))


def test_a_call_made_before_and_copied_into_the_step_is_the_steps():
    x, drop, trail = pt.vector("x"), Dropout("drop", p=0.5), Trail("trail")
    a = pt.scalar("a")
    outside = trail(a) + 0 * drop(a)
    program = compiled(ptml.scan(lambda b: clone_replace(outside, {a: b}), sequences=x), [x])
    program(np.array([1.0, 2.0, 3.0]))
    assert program.state["trail/s"] == 123.0


def test_statistics_go_through_the_iterations_in_order():
    x, trail = pt.vector("x"), Trail("trail")
    program = compiled(ptml.scan(lambda a: trail(a), sequences=x), [x])
    np.testing.assert_array_equal(program(np.array([1.0, 2.0, 3.0])), [1.0, 3.0, 15.0])
    assert program.state["trail/s"] == 123.0
    program(np.array([4.0]))
    assert program.state["trail/s"] == 1234.0


def test_several_applications_in_a_step_are_sequenced():
    x, trail = pt.vector("x"), Trail("trail")

    def step(a):
        first = trail(a)
        return trail(a + 1), first

    program = compiled(ptml.scan(step, sequences=x), [x])
    second, first = program(np.array([1.0, 5.0]))
    assert program.state["trail/s"] == 1256.0
    np.testing.assert_array_equal(first, [1.0, 5.0 + 12])
    np.testing.assert_array_equal(second, [2.0 + 1, 6.0 + 125])


def test_a_loop_is_one_application_among_others():
    x, trail = pt.vector("x"), Trail("trail")
    before = trail(x[0] * 7)
    loop = ptml.scan(lambda a: trail(a), sequences=x)
    after = trail(x[0] * 9)
    program = compiled([after, loop.sum(), before], [x])
    program(np.array([1.0, 2.0]))
    assert program.state["trail/s"] == 7129.0


def test_any_output_of_a_loop_moves_its_statistics():
    x, trail = pt.vector("x"), Trail("trail")
    outputs = ptml.scan(lambda a: (trail(a), 2 * a), sequences=x)
    program = compiled(outputs[1], [x])
    program(np.array([1.0, 2.0]))
    assert program.state["trail/s"] == 12.0


def test_an_empty_sequence_leaves_statistics_as_they_were():
    X, bn = Input("X", (None, 3, 2)), BatchNorm("bn", n_in=2)
    program = compiled(ptml.scan(lambda x: bn(x), sequences=X), [X])
    before = program.state
    assert program(np.ones((0, 3, 2))).size == 0
    assert program.state == before


def test_a_loop_of_a_loop_carries_and_draws_through_both():
    X, trail, drop = Input("X", (None, None)), Trail("trail"), Dropout("drop", p=0.5)

    def inner(a):
        return trail(a), drop(pt.ones((16,)))

    seen, masks = ptml.scan(lambda row: ptml.scan(inner, sequences=row), sequences=X)
    program = compiled([seen, masks], [X])
    _, drawn = program(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert program.state["trail/s"] == 1234.0
    assert len({tuple(mask) for mask in drawn.reshape(4, 16)}) == 4


def test_a_layer_with_a_loop_inside_is_applied_twice_like_any_other():
    x = pt.vector("x")
    trail, drop = Trail("trail"), Dropout("drop", p=0.5)
    cell = Cell("cell", inner=Sequential(trail))
    first, second = cell(x), cell(2 * x)
    program = compiled([second, first], [x])
    program(np.array([1.0, 2.0]))
    assert program.state["trail/s"] == 1224.0
    X, net = Input("X", (None, 16)), Cell("cell", inner=drop)
    one, other = compiled([net(X), net(X)], [X])(np.ones((3, 16)))
    assert len({tuple(row) for row in (*one, *other)}) == 6


def test_a_prediction_of_a_loop_reads_statistics_as_they_are_and_draws_nothing():
    X = Input("X", (None, 4, 2))
    net = Sequential(BatchNorm("bn", n_in=2), Dropout("drop", p=0.5))
    Y = ptml.scan(lambda x: net(x), sequences=X)
    program = compiled(Y, [X])
    x = np.random.default_rng(0).normal(3.0, 2.0, (5, 4, 2))
    program(x)
    predict = predicted(Y, program)
    assert "drop/key" not in predict.state
    mean, variance = program.state["bn/running_mean"], program.state["bn/running_var"]
    for _ in range(2):
        np.testing.assert_allclose(predict(x), (x - mean) / np.sqrt(variance + 1e-5), rtol=1e-12)
    assert predict.state == program.state.drop("drop/key")


def by_hand(state, x):
    """Give loss and running statistics of the recurrence below, in NumPy."""
    key = state["drop/key"].tolist()
    h, mean, variance = np.zeros((5, 3)), np.zeros(3), np.ones(3)
    for t, row in enumerate(x):
        pre = row @ state["fc/W"] + h
        normal = (pre - pre.mean(0)) / np.sqrt(pre.var(0) + 1e-5)
        mean, variance = 0.9 * mean + 0.1 * pre.mean(0), 0.9 * variance + 0.1 * pre.var(0)
        words = numbers([*folded_key(key, t), *key[2:]], 0, 15, "uint32").reshape(5, 3)
        h = normal * (words < round(0.7 * 2**32)) / 0.7
    return (h**3).sum(), mean, variance


@pytest.mark.backends("numba", "c", "jax")
def test_a_recurrence_with_dropout_and_batch_norm_is_the_one_by_hand(backend):
    X = Input("X", (4, 5, 2))
    drop, bn = Dropout("drop", p=0.3), BatchNorm("bn", n_in=3, affine=False)
    fc = Linear("fc", n_in=2, n_out=3, bias=False)
    hidden = ptml.scan(lambda x, h: drop(bn(fc(x) + h)), sequences=X, outputs_info=pt.zeros((5, 3)))
    loss = (hidden[-1] ** 3).sum()
    step = ptml.function([X], [loss, pytensor.grad(loss, fc.W)], seed=0, backend=backend)
    x, before = np.random.default_rng(0).normal(size=(4, 5, 2)), step.state
    value, gradient = step(x)
    wanted, mean, variance = by_hand(before, x)
    np.testing.assert_allclose(value, wanted, rtol=1e-10)
    np.testing.assert_allclose(step.state["bn/running_mean"], mean, rtol=1e-10)
    np.testing.assert_allclose(step.state["bn/running_var"], variance, rtol=1e-10)
    # The gradient is that of the loss with the masks held: the state, keys and all, is set before each call.
    for i, j in [(0, 0), (1, 2)]:
        ends = []
        for sign in (1, -1):
            W = before["fc/W"].copy()
            W[i, j] += sign * 1e-6
            step.store.load(before.replace({"fc/W": W}))
            ends.append(step(x)[0])
        np.testing.assert_allclose(gradient[i, j], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)
    step.store.load(before)
    assert step(x)[0] == value
    assert step(x)[0] != value
    np.testing.assert_array_equal(step.state["drop/key"][2:], [2, 0])


def test_clocks_do_not_move_within_a_loop():
    x, clock = pt.vector("x"), Slot("ticks", Role.CLOCK, "int64", (), Zeros()).handle
    program = compiled(ptml.scan(lambda a: a + clock, sequences=x), [x])
    program(np.zeros(3))
    np.testing.assert_array_equal(program(np.zeros(3)), [1.0, 1.0, 1.0])


def test_parameters_in_a_loop_are_collected_and_trained():
    X, fc = Input("X", (None, 3, 2)), Linear("fc", n_in=2, n_out=2)
    Y = ptml.scan(lambda x: fc(x), sequences=X)
    step = compile_train((Y**2).mean(), sgd(0.1), seed=0, compile_kwargs={"mode": PYTHON})
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    losses = [float(step(x)) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert list(step.state) == ["fc/W", "fc/b"]


def test_a_step_that_returns_updates_is_refused():
    x, shared = pt.vector("x"), pytensor.shared(0.0)
    with pytest.raises(
        TypeError, match=r"The step of ptml\.scan returns its outputs, and no dict of updates"
    ):
        ptml.scan(lambda a: (a, {shared: shared + 1}), sequences=x)
    with pytest.raises(TypeError, match="no dict of updates"):
        ptml.scan(lambda a: a, sequences=x, return_updates=True)
    assert ptml.scan(lambda a: a, sequences=x, return_updates=False).type.ndim == 1


def test_an_error_in_the_step_comes_through_as_it_is():
    X, fc = Input("X", (None, 3, 3)), Linear("fc", n_in=2, n_out=2)
    with pytest.raises(ValueError, match="fc"):
        ptml.scan(lambda x: fc(x), sequences=X)


def test_a_single_step_is_a_loop_too():
    X, trail, drop = Input("X", (1,)), Trail("trail"), Dropout("drop", p=0.5)
    program = compiled(ptml.scan(lambda x: trail(x) + 0 * drop(x), sequences=X, n_steps=1), [X])
    program(np.array([3.0]))
    program(np.array([4.0]))
    assert program.state["trail/s"] == 34.0
    assert program.state["drop/key"][2] == 2
