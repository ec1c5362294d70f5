"""Loops of every kind, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert
from pytensor.scan.utils import until

RNG = np.random.default_rng(13)
HALF, ONE, NONE = (pt.constant(number, dtype="float64") for number in (0.5, 1.0, 0.0))

x, h, w = pt.matrix("x", dtype="float64"), pt.vector("h", dtype="float64"), pt.matrix("w", dtype="float64")
pair, k = pt.matrix("pair", dtype="float64"), pt.vector("k", dtype="int64")
INPUTS = [x, h, w, pair, k]


def values(n_steps=6, width=3):
    return [
        RNG.normal(size=(n_steps, width)), RNG.normal(size=width), RNG.normal(size=(width, width)),
        RNG.normal(size=(2, width)), RNG.integers(0, width, n_steps),
    ]  # fmt: skip


def loop(*arguments, **others):
    return pytensor.scan(*arguments, return_updates=False, **others)


def network(**others):
    return loop(lambda row, h, w: pt.tanh(row + h @ w), [x], [h], [w], **others)


def inner(row):
    return loop(lambda q, total: total * HALF + q, [row], [NONE])[-1]


LOOPS = {
    "all states": lambda: network(),
    "the last state": lambda: network()[-1],
    "the last two": lambda: network()[-2:],
    "backwards": lambda: network(go_backwards=True),
    "its gradient": lambda: pt.grad((network() ** 2).sum(), [x, h, w]),
    "the gradient of the last": lambda: pt.grad(network()[-1].sum(), [x, h, w]),
    "a gradient cut short": lambda: pt.grad(network(truncate_gradient=2)[-1].sum(), w),
    "two steps back": lambda: _two_back(),
    "two steps back, the last": lambda: _two_back()[-1],
    "two steps back, gradient": lambda: pt.grad(_two_back()[-1].sum(), [x, pair]),
    "no states": lambda: loop(lambda row: [row * 2, row.sum()], [x]),
    "neighbours": lambda: loop(lambda a, b: a - b, [{"input": x, "taps": [0, -1]}]),
    "states that need each other": lambda: loop(lambda row, a, b: (a + row, b * a), [x], [h, h]),
    "their last": lambda: [s[-1] for s in loop(lambda row, a, b: (a + row, b * a), [x], [h, h])],
    "states that change places": lambda: loop(lambda a, b: (b, a + 1), None, [h, h * 2], n_steps=5),
    "an input as a result": lambda: loop(lambda row, a: (a, row), [x], [h, None]),
    "a view as a state": lambda: loop(lambda a: a[::-1], None, [h], n_steps=3)[-1],
    "numbers": lambda: loop(lambda q, a: a * q, [h], [ONE]),
    "one array in several ways": lambda: loop(
        lambda row, same, first: row * same + first, [x, pt.broadcast_to(x[0], x.shape)], None, [x[0]]
    ),
    "rows that are looked up": lambda: loop(lambda i, a, w: a + w[i], [k], [h], [w]),
    "the gradient of looking up": lambda: pt.grad(
        loop(lambda i, a, w: pt.tanh(a * w[i]), [k], [h], [w])[-1].sum(), w
    ),
    "a loop in a loop": lambda: loop(lambda row, a: a + inner(row), [x], [h]),
    "its gradient, of both": lambda: pt.grad(loop(lambda row, a: a * inner(row), [x], [h])[-1].sum(), [x, h]),
    "columns": lambda: loop(lambda column: column * 2, [x.T]),
    "products of matrices": lambda: loop(lambda a, w: a @ w / 2, None, [w], [w], n_steps=4)[-1],
    "fewer steps than rows": lambda: loop(lambda row, a: a + row, [x], [h], n_steps=2),
}


def _two_back():
    initial = {"initial": pair, "taps": [-1, -2]}
    return loop(lambda row, a, b: a * HALF + b * HALF * HALF + row, [x], [initial])


@pytest.mark.parametrize("name", LOOPS)
def test_loops_run_as_tables(same_on_both, name):
    outputs = LOOPS[name]()
    outputs = outputs if isinstance(outputs, list) else [outputs]
    calls = [values(), values(2)] if name != "columns" else [values(), values(4)]
    same_on_both(INPUTS, outputs, *calls, rtol=1e-8)


def test_loops_that_stop_by_themselves_run_in_python(same_on_both):
    doubled = loop(lambda a: (a * 2, until(a.sum() > 50.0)), None, [abs(h) + 1], n_steps=20)
    same_on_both(INPUTS, [doubled, doubled[-1]], values(), values(), kernels=False)


def test_as_many_steps_as_a_call_says(same_on_both):
    n = pt.scalar("n", dtype="int64")
    states = loop(lambda a: a * 2, None, [h], n_steps=n)
    same_on_both([h, n], [states[-1]], [np.ones(3), 2], [np.ones(3), 5], kernels=False)


def test_states_in_float32(same_on_both):
    y, s = pt.matrix("y", dtype="float32"), pt.vector("s", dtype="float32")
    states = loop(lambda row, s: pt.tanh(row * s), [y], [s])
    given = RNG.normal(size=(40, 5)).astype("f4"), np.ones(5, "f4")
    same_on_both([y, s], [states[-1], pt.grad(states[-1].sum(), y)], given, rtol=1e-4, atol=1e-6)


def test_an_error_in_an_iteration_raises_and_leaves_the_state(fails_alike):
    checked = loop(lambda row, a: Assert("a row is below zero")(a + row, (row > 0).all()), [x], [h])
    good, bad = np.ones((4, 3)), np.ones((4, 3))
    bad[2] = -1
    fails_alike([x, h], checked[-1], [good, np.ones(3)], [bad, np.ones(3)], "a row is below zero")


def test_a_place_that_is_not_there_raises_in_an_iteration(fails_alike):
    taken = loop(lambda i, a, h: a + h[i], [k], [NONE], [h])
    fails_alike([k, h], taken, [[0, 2], np.ones(3)], [[0, 3], np.ones(3)], "out of bounds")


def test_states_of_another_size_raise(fails_alike):
    states = loop(lambda row, a: a[:2] + row[:2], [x], [h])
    fails_alike([x, h], states, None, [np.ones((4, 3)), np.ones(3)])
