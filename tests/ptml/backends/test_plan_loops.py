"""What the plan makes of loops and of arrays as indices: tables, threads, memory."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.backends.numba.plan import PLAN

RNG = np.random.default_rng(3)


@pytest.fixture(params=[1, 3])
def threads(request):
    before = ptml.get_threads()
    ptml.set_threads(request.param)
    yield request.param
    ptml.set_threads(before)


def test_many_rows_are_gathered_by_several_threads(threads):
    x, k = pt.matrix("x", dtype="float32"), pt.vector("k", dtype="int32")
    f = pytensor.function([x, k], [x[k], x[:, k[:300]]], mode=PLAN)
    values, places = RNG.normal(size=(1000, 64)).astype("f4"), RNG.integers(-60, 60, 20_000).astype("i4")
    rows, columns = f(values, places)
    np.testing.assert_array_equal(rows, values[places])
    np.testing.assert_array_equal(columns, values[:, places[:300]])
    places[-1] = 1000
    with pytest.raises(IndexError, match="1000 is out of bounds"):
        f(values, places)


def test_long_rows_are_searched_and_summed_by_several_threads(threads):
    x = pt.matrix("x", dtype="float64")
    f = pytensor.function([x], [x.argmax(1), pt.cumsum(x, 1)], mode=PLAN)
    values = RNG.normal(size=(500, 900))
    places, sums = f(values)
    np.testing.assert_array_equal(places, values.argmax(1))
    np.testing.assert_allclose(sums, np.cumsum(values, 1))


def test_large_work_in_an_iteration_is_shared_out(threads):
    x, w = pt.tensor3("x", dtype="float32"), pt.matrix("w", dtype="float32")
    states = pytensor.scan(lambda part, h, w: pt.tanh(part + h * w), [x], [x[0]], [w], return_updates=False)
    f = pytensor.function([x, w], states[-1], mode=PLAN)
    parts, weights = RNG.normal(size=(5, 600, 700)).astype("f4"), RNG.normal(size=(600, 700)).astype("f4")
    want = parts[0]
    for part in parts:
        want = np.tanh(part + want * weights)
    np.testing.assert_allclose(f(parts, weights), want, rtol=1e-5, atol=1e-5)
    assert not f.vm.has_python_steps


def test_a_loop_needs_no_more_memory_for_more_iterations_where_its_last_state_is_wanted():
    x = pt.vector("x", dtype="float64")

    def planned(n_steps):
        states = pytensor.scan(
            lambda h: pt.tanh(h[::-1] + h), None, [x], n_steps=n_steps, return_updates=False
        )
        f = pytensor.function([x], states[-1], mode=PLAN)
        f(np.ones(1000))
        (table,) = f.vm.tables.values()
        return table.planned_bytes

    assert planned(4) == planned(400) < 5 * 8100


def test_a_loop_is_one_kernel_of_the_outer_table():
    x = pt.matrix("x", dtype="float64")
    totals = pytensor.scan(lambda row, total: total + row, [x], [pt.zeros(3)], return_updates=False)
    f = pytensor.function([x], totals, mode=PLAN)
    np.testing.assert_allclose(f(np.ones((50, 3))), np.arange(1, 51)[:, None] * np.ones(3))
    np.testing.assert_allclose(f(np.ones((2, 3))), [[1, 1, 1], [2, 2, 2]])
    assert all(table.n_kernels < 10 for table in f.vm.tables.values())


def test_a_cell_is_read_in_every_iteration_and_written_once():
    w = pytensor.shared(np.array([1.0, 2.0]), name="w")
    x = pt.matrix("x", dtype="float64")
    totals = pytensor.scan(lambda row, total, w: total + row * w, [x], [w], [w], return_updates=False)
    f = pytensor.function([x], totals[-1], updates={w: totals[-1]}, mode=PLAN)
    for _ in range(2):
        before = w.get_value()
        want = before + 4 * before
        np.testing.assert_allclose(f(np.ones((4, 2))), want)
        np.testing.assert_allclose(w.get_value(), want)


def test_layers_with_dropout_run_in_loops_as_tables():
    x = pt.tensor3("x", dtype="float64")
    cell = ptml.layers.Sequential(ptml.layers.Linear(n_in=4, n_out=4), ptml.layers.Dropout(p=0.5))
    states = ptml.scan(lambda part, h: pt.tanh(cell(part + h)), sequences=x, outputs_info=x[0])
    program = ptml.function([x], states[-1], seed=0)
    first, second = (program(np.ones((6, 2, 4))) for _ in range(2))
    assert first.shape == (2, 4)
    assert (first != second).any()
    assert not program.function.vm.has_python_steps
