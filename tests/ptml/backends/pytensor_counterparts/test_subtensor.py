"""Indexing of every kind, read and written, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.backends.numba.plan import PLAN

RNG = np.random.default_rng(11)


def numbers(*shape, dtype="float64"):
    return (RNG.normal(size=shape) * 9).astype(dtype)


BASIC = {
    "rows": lambda x: x[1:],
    "every other, from behind": lambda x: x[::-2, :, 1:],
    "one": lambda x: x[0, 1, 2],
    "last": lambda x: x[..., -1],
    "new axes": lambda x: x[:, None, 0, None],
    "nothing": lambda x: x[3:1],
    "beyond the end": lambda x: x[:99, -99:],
}


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_slices_and_numbers_read_and_write(same_on_both, dtype):
    x = pt.tensor3("x", dtype=dtype)
    outputs = [read for take in BASIC.values() for read in (take(x), pt.set_subtensor(take(x), take(x)))]
    if dtype != "bool":
        outputs += [pt.inc_subtensor(take(x), take(x)) for take in BASIC.values()]
    values = numbers(3, 2, 4).astype(dtype)
    same_on_both([x], outputs, [values], [np.asfortranarray(values)], [values[::-1]])


def test_numbers_known_only_when_the_program_runs(same_on_both):
    x, i, j = pt.matrix("x", dtype="float64"), pt.scalar("i", dtype="int64"), pt.scalar("j", dtype="int32")
    outputs = [
        x[i], x[i, j], x[1:, i], x[i][::-1], pt.set_subtensor(x[i], 5.0), pt.inc_subtensor(x[i, j], 1.0),
        pt.inc_subtensor(x[:, j], x[:, 0]), pt.grad((x[i] ** 2).sum() + x[j, i], x),
    ]  # fmt: skip
    for a, b in ((0, 1), (-1, 2), (2, -3)):
        same_on_both([x, i, j], outputs, [numbers(3, 3), np.int64(a), np.int32(b)])


ADVANCED = {
    "rows": lambda x, k, q: x[k],
    "columns": lambda x, k, q: x[:, k],
    "last axis": lambda x, k, q: x[..., k],
    "pairs": lambda x, k, q: x[k, k],
    "pairs apart": lambda x, k, q: x[k, :, k],
    "a matrix of rows": lambda x, k, q: x[q],
    "a matrix of pairs": lambda x, k, q: x[:, q, q],
    "broadcast": lambda x, k, q: x[k[:, None], k[None, :]],
    "with a slice": lambda x, k, q: x[k, 1:, ::-1],
    "with a number": lambda x, k, q: x[0, k],
    "with a number apart": lambda x, k, q: x[0, :, k],
    "known": lambda x, k, q: x[[2, 0, -1, 2]],
    "none": lambda x, k, q: x[k[:0]],
}


@pytest.mark.parametrize(("dtype", "index"), [("float64", "int64"), ("float32", "int32"), ("int16", "uint8")])
def test_arrays_of_places_read_and_write(same_on_both, dtype, index):
    x, k, q = pt.tensor3("x", dtype=dtype), pt.vector("k", dtype=index), pt.matrix("q", dtype=index)
    outputs = []
    for take in ADVANCED.values():
        part = take(x, k, q)
        outputs += [part, pt.set_subtensor(part, np.ones((), dtype)), pt.inc_subtensor(part, part)]
    places, square = np.array([2, 0, 2], index), np.array([[1, 2], [0, 1]], index)
    values = numbers(3, 3, 3).astype(dtype)
    calls = [[values, places, square], [np.asfortranarray(values), places[::-1], square.T]]
    if index != "uint8":
        calls.append([values[::-1, :, ::-1], -places, -square])
    same_on_both([x, k, q], outputs, *calls, rtol=1e-5)


def test_gradients_add_up_where_a_place_is_taken_twice(same_on_both):
    x, k = pt.matrix("x", dtype="float64"), pt.vector("k", dtype="int64")
    losses = [
        (x[k] ** 2).sum(),
        pt.tanh(x[:, k]).sum(),
        (x[k, k] * x[0]).sum(),
        (x[k[:, None], k] ** 3).sum(),
    ]
    outputs = [pt.grad(loss, x) for loss in losses]
    same_on_both([x, k], outputs, [numbers(4, 4), np.array([3, 3, 0, 3])])


def test_masks_that_choose_where_to_write(same_on_both):
    x, m, v = pt.matrix("x", dtype="float32"), pt.matrix("m", dtype="bool"), pt.vector("v", dtype="float32")
    outputs = [
        pt.set_subtensor(x[m], 0.0), pt.inc_subtensor(x[m], 1.0), pt.set_subtensor(x[m[:, 0]], v),
        pt.inc_subtensor(x[m[0]], v), pt.set_subtensor(x[m[:, 0]], v[None]),
    ]  # fmt: skip
    square, none = RNG.integers(0, 2, (4, 4)).astype(bool), np.zeros((4, 4), bool)
    values = numbers(4, 4, dtype="f4")
    values[0, 0] = np.nan
    same_on_both([x, m, v], outputs, [values, square, numbers(4, dtype="f4")], [values, none, values[1]])


def test_masks_that_choose_what_to_read_run_in_python(same_on_both):
    x, m = pt.matrix("x", dtype="float64"), pt.matrix("m", dtype="bool")
    outputs = [x[m], x[m[:, 0]], pt.grad((x[m] ** 2).sum(), x), pt.nonzero(m)[0]]
    square = RNG.integers(0, 2, (4, 4)).astype(bool)
    same_on_both([x, m], outputs, [numbers(4, 4), square], [numbers(4, 4), ~square], kernels=False)


def test_empty_arrays(same_on_both):
    x, k = pt.matrix("x", dtype="float64"), pt.vector("k", dtype="int64")
    outputs = [x[k], pt.inc_subtensor(x[k], 1.0), x[1:], pt.set_subtensor(x[:, :1], 2.0)]
    none = np.zeros(0, "int64")
    same_on_both([x, k], outputs, [np.zeros((0, 3)), none], [np.zeros((3, 0)), np.array([1, 2])])


def test_diagonals_and_triangles(same_on_both):
    x, t, v = (
        pt.matrix("x", dtype="float64"),
        pt.tensor3("t", dtype="float64"),
        pt.vector("v", dtype="float64"),
    )
    outputs = [
        pt.diag(x), pt.diagonal(x, 1) + 1, pt.diagonal(t, axis1=1, axis2=2), pt.diagonal(t, -1, 0, 2),
        pt.diag(v), pt.tril(x), pt.triu(x, 1), pt.grad((pt.diag(x) ** 2).sum(), x),
        pt.set_subtensor(pt.diag(x)[1:], 0.0),
    ]  # fmt: skip
    same_on_both([x, t, v], outputs, [numbers(3, 4), numbers(2, 3, 3), numbers(3)])


WRONG = {
    "read": (lambda x, k: x[k].sum(), "out of bounds"),
    "read in a column": (lambda x, k: x[:, k].sum(), "out of bounds"),
    "add": (lambda x, k: pt.inc_subtensor(x[k], 1.0), "out of bounds"),
    "write": (lambda x, k: pt.set_subtensor(x[k, k], 1.0), "out of bounds"),
    "read one": (lambda x, k: x[k[0]] + x[k[1]], "out of bounds"),
}


@pytest.mark.parametrize("bad", [[0, 4], [-5, 0]])
@pytest.mark.parametrize("name", WRONG)
def test_a_place_that_is_not_there_raises_and_leaves_the_state(fails_alike, name, bad):
    make, match = WRONG[name]
    x, k = pt.matrix("x", dtype="float64"), pt.vector("k", dtype="int64")
    fails_alike([x, k], make(x, k), [numbers(4, 4), [3, -4]], [numbers(4, 4), bad], match)


def test_changes_of_another_size_raise(fails_alike):
    x, y, k = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64"), pt.vector("k", dtype="int64")
    good = [numbers(4, 4), numbers(2, 4), [1, 2]]
    fails_alike([x, y, k], pt.inc_subtensor(x[k], y), good, [numbers(4, 4), numbers(3, 4), [1, 2]])
    fails_alike([x, y, k], pt.set_subtensor(x[:2], y), good, [numbers(4, 4), numbers(3, 4), [1, 2]])
    fails_alike([x, y, k], pt.inc_subtensor(x[k], y), good, [numbers(4, 4), numbers(1, 4), [1, 2]])


def test_rows_are_added_to_a_cell_where_it_is():
    table = pytensor.shared(np.zeros((50, 3)), name="table")
    k, rows = pt.vector("k", dtype="int64"), pt.matrix("rows", dtype="float64")
    f = pytensor.function(
        [k, rows], table[k].sum(), updates={table: pt.inc_subtensor(table[k], rows)}, mode=PLAN
    )
    cell = table.get_value(borrow=True)
    assert f([1, 1, 7], np.ones((3, 3))) == 0
    assert table.get_value(borrow=True) is cell
    assert cell[[1, 7]].tolist() == [[2, 2, 2], [1, 1, 1]]
    (planned,) = f.vm.tables.values()
    assert planned.planned_bytes < cell.nbytes
    with pytest.raises(IndexError, match="out of bounds"):
        f([1, 50], np.ones((2, 3)))
    assert cell.sum() == 9


def test_a_table_serves_arrays_that_were_one_at_first_and_are_two_later():
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    f = pytensor.function([x, y], [x * y + 1, pt.inc_subtensor(x[1:], y[1:])], mode=PLAN)
    a, b = numbers(4), numbers(4)
    f(a, a)
    np.testing.assert_allclose(f(a, b)[0], a * b + 1)
    np.testing.assert_allclose(f(a, b)[1], np.concatenate([a[:1], (a + b)[1:]]))


def test_an_input_that_is_a_cell_is_read_as_it_was():
    w = pytensor.shared(np.arange(3.0), name="w")
    x = pytensor.compile.io.In(pt.vector("x", dtype="float64"), borrow=True)
    f = pytensor.function([x], x.variable.sum(), updates={w: w * 3 + x.variable[::-1]}, mode=PLAN)
    f(np.zeros(3))
    w.set_value(np.arange(3.0))
    assert f(w.get_value(borrow=True)) == 3
    assert w.get_value().tolist() == [2, 4, 6]
