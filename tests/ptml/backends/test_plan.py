"""The plan against PyTensor's Python linker: whatever a graph does, both give the same."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor import sparse
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode
from pytensor.conditional.op import ifelse
from pytensor.raise_op import Assert
from pytensor.scan.utils import until
from pytensor.tensor.special import log_softmax, softmax

from ptml.backends.numba.plan import PLAN
from ptml.bits import Draw, FoldIn
from ptml.labels import CheckLabels, CheckProbabilities

REFERENCE = Mode(linker="py", optimizer="fast_compile")
RNG = np.random.default_rng(7)


def agree(inputs, outputs, *calls, rtol=1e-10, atol=1e-12):
    """Run a graph on both, for each of several inputs, and compare every result."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    planned = pytensor.function(inputs, outputs, mode=PLAN, on_unused_input="ignore")
    reference = pytensor.function(inputs, outputs, mode=REFERENCE, on_unused_input="ignore")
    for values in calls:
        before = [np.copy(value) for value in values]
        for have, want in zip(planned(*values), reference(*values), strict=True):
            assert have.dtype == want.dtype
            assert have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)
        for value, old in zip(values, before, strict=True):
            np.testing.assert_array_equal(value, old)
    return planned


def matrix(*shape, dtype="float64"):
    return (RNG.normal(size=shape) * 3).astype(dtype)


UNARY = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": pt.sign,
    "sqr": pt.sqr,
    "sqrt": lambda x: pt.sqrt(abs(x)),
    "reciprocal": pt.reciprocal,
    "exp": pt.exp,
    "expm1": pt.expm1,
    "log": lambda x: pt.log(abs(x)),
    "log1p": lambda x: pt.log1p(abs(x)),
    "log2": lambda x: pt.log2(abs(x)),
    "log10": lambda x: pt.log10(abs(x)),
    "tanh": pt.tanh,
    "sigmoid": pt.sigmoid,
    "softplus": pt.softplus,
    "erf": pt.erf,
    "erfc": pt.erfc,
    "sin": pt.sin,
    "cos": pt.cos,
    "arctan": pt.arctan,
    "ceil": pt.ceil,
    "floor": pt.floor,
    "trunc": pt.trunc,
    "round": lambda x: pt.round(x, mode="half_to_even"),
    "isnan": pt.isnan,
    "isinf": pt.isinf,
    "log1mexp": lambda x: pt.log1mexp(-abs(x)),
    "gammaln": lambda x: pt.gammaln(abs(x)),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name):
    x = pt.matrix("x", dtype="float64")
    agree([x], UNARY[name](x), [matrix(5, 7)], [matrix(1, 1)], [matrix(0, 3)])


BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "true_div": lambda x, y: x / y,
    "floor_div": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "pow": lambda x, y: abs(x) ** y,
    "maximum": pt.maximum,
    "minimum": pt.minimum,
    "lt": lambda x, y: x < y,
    "ge": lambda x, y: x >= y,
    "eq": pt.eq,
    "neq": pt.neq,
    "switch": lambda x, y: pt.switch(x > y, x, y),
    "clip": lambda x, y: pt.clip(x, -abs(y), abs(y)),
    "arctan2": pt.arctan2,
    "second": pt.second,
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_with_broadcasting(name):
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    agree([x, y], BINARY[name](x, y), [matrix(4, 5), matrix(5)], [matrix(0, 5), matrix(5)])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint32", "int32"])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floor_div", "mod", "maximum", "minimum", "lt", "switch"]
)
def test_functions_of_integers(name, dtype):
    x, y = pt.vector("x", dtype=dtype), pt.vector("y", dtype=dtype)
    a, b = RNG.integers(0, 100, (2, 50)).astype(dtype)
    if dtype[0] == "i":
        a, b = a - 50, b - 50
    if name in ("floor_div", "mod"):
        b[b == 0] = 1
    agree([x, y], BINARY[name](x, y), [a.astype(dtype), b.astype(dtype)])


def test_truth_values_and_bits():
    p, q, k = pt.vector("p", dtype="bool"), pt.vector("q", dtype="bool"), pt.vector("k", dtype="int16")
    a, b = RNG.integers(0, 2, (2, 9)).astype(bool)
    agree([p, q], [p & q, p | q, p ^ q, ~p, p + q, pt.switch(p, 1.0, 2.0)], [a, b])
    agree([k], [~k, k & 6, k | 5, k ^ 3], [np.arange(-5, 5, dtype="int16")])


@pytest.mark.parametrize("new", ["float32", "float64", "int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("old", ["float32", "float64", "int8", "int64", "uint8", "bool"])
def test_casts(old, new):
    x = pt.vector("x", dtype=old)
    values = np.array([0, 1, 2, 100]).astype(old)
    agree([x], [pt.cast(x, new), pt.cast(x + x, new)], [values])


def test_special_numbers():
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    a, b = (grid.ravel() for grid in np.meshgrid(special, special))
    outputs = [
        pt.maximum(x, y), pt.minimum(x, y), x < y, pt.eq(x, y), pt.neq(x, y), pt.sign(x), x.max(), y.min(),
        pt.exp(x), pt.tanh(x), pt.sigmoid(x), pt.isnan(x), pt.cast(x, "bool"),
    ]  # fmt: skip
    agree([x, y], outputs, [a, b])


def test_half_precision_and_complex_numbers_run_in_python():
    x, z = pt.vector("x", dtype="float16"), pt.vector("z", dtype="complex128")
    agree([x, z], [x + 1, (z * 2).real], [np.ones(3, "float16"), np.ones(3, "complex128")], rtol=1e-3)


REDUCTIONS = {
    "sum": lambda x, axis: x.sum(axis),
    "prod": lambda x, axis: x.prod(axis),
    "max": lambda x, axis: x.max(axis),
    "min": lambda x, axis: x.min(axis),
    "mean": lambda x, axis: x.mean(axis),
    "var": lambda x, axis: x.var(axis),
    "all": lambda x, axis: (x > 0).all(axis),
    "any": lambda x, axis: (x > 3).any(axis),
    "logsumexp": lambda x, axis: pt.logsumexp(x, axis=axis),
    "argmax": lambda x, axis: x.argmax(axis) if axis is None or isinstance(axis, int) else x.argmax(0),
}


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (1, 2), (0, 2), -1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, axis):
    x = pt.tensor3("x", dtype="float64")
    transposed = np.asfortranarray(matrix(4, 3, 6))
    agree([x], REDUCTIONS[name](x, axis), [matrix(2, 3, 4)], [transposed], [matrix(1, 5, 1)])


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
def test_reductions_of_other_types(dtype):
    x = pt.matrix("x", dtype=dtype)
    values = RNG.integers(0, 5, (6, 7)).astype(dtype)
    outputs = [x.sum(), x.sum(0), x.sum(1), x.prod(1), x.max(0), x.min(1), x.max()]
    agree([x], outputs, [values], rtol=1e-6)


def test_reductions_of_nothing():
    x = pt.matrix("x", dtype="float64")
    outputs = [x.sum(), x.sum(0), x.sum(1), x.prod(0), (x > 0).all(1)]
    agree([x], outputs, [np.zeros((0, 3))], [np.zeros((3, 0))], [np.zeros((0, 0))])
    agree([x], x.max(0), [np.zeros((3, 0))])


def test_an_extreme_of_nothing_raises_as_numpy_does():
    x = pt.matrix("x", dtype="float64")
    f = pytensor.function([x], x.max(0), mode=PLAN)
    with pytest.raises(ValueError, match="zero-size array to reduction"):
        f(np.zeros((0, 3)))


def test_a_reduction_shares_the_loop_of_what_it_reduces():
    x, b = pt.matrix("x", dtype="float64"), pt.vector("b", dtype="float64")
    y = pt.exp(x + b)
    planned = agree([x, b], [y, y.sum(0), y.max(1), y.sum()], [matrix(5, 3), matrix(3)])
    (table,) = planned.vm.tables.values()
    assert table.n_kernels == 1


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "reversed": lambda x: x[::-1, ::-1],
    "every other": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("other", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_that_lie_anyhow(layout, other):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    outputs = [x * y, x.T + y.T, (x + y).sum(0), (x * y).sum(1), pt.dot(x, y.T), pt.dot(x.T, y)]
    agree([x, y], outputs, [LAYOUTS[layout](matrix(4, 6)), LAYOUTS[other](matrix(4, 6))])


def test_products():
    x, y, v = (
        pt.matrix("x", dtype="float64"),
        pt.matrix("y", dtype="float64"),
        pt.vector("v", dtype="float64"),
    )
    outputs = [x @ y, y.T @ x.T, x @ v, v @ y, pt.outer(v, v), pt.dot(v, v), (x @ y)[::2, 1:]]
    agree(
        [x, y, v], outputs, [matrix(3, 4), matrix(4, 4), matrix(4)], [matrix(1, 1), matrix(1, 1), matrix(1)]
    )


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 5, 1), (1, 1, 5), (0, 0, 0)])
def test_thin_and_empty_products(m, k, n):
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float32")
    agree([x, y], [x @ y, (y.T @ x.T).sum()], [matrix(m, k, dtype="f4"), matrix(k, n, dtype="f4")], rtol=1e-5)


def test_batched_products():
    x, y = pt.tensor3("x", dtype="float64"), pt.tensor3("y", dtype="float64")
    z = pt.tensor("z", shape=(1, None, None), dtype="float64")
    outputs = [x @ y, x @ y.transpose(0, 2, 1), x.transpose(0, 2, 1) @ x, x @ z]
    agree([x, y, z], outputs, [matrix(5, 3, 3), matrix(5, 3, 3), matrix(1, 3, 3)])


def test_products_of_integers_and_of_mixed_types():
    x, y = pt.matrix("x", dtype="int64"), pt.matrix("y", dtype="float64")
    agree([x, y], [x @ x, x @ y], [np.arange(4).reshape(2, 2), matrix(2, 2)])


def test_views():
    x = pt.tensor3("x", dtype="float64")
    outputs = [
        x[1:], x[::-1], x[..., 0], x[0, 1, 2], x[:, None], x.transpose(2, 0, 1), x.reshape((-1, 2)),
        x.transpose(2, 1, 0).reshape((-1,)), x.ravel(), x[::2].reshape((2, 6)), x.T.sum(0), x[-1] + x[0],
    ]  # fmt: skip
    agree([x], outputs, [matrix(3, 2, 3)[:, :, [0, 1, 2]]], [matrix(4, 2, 3)])


def test_an_index_out_of_range_names_the_node():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], x[5] * 2, mode=PLAN)
    assert f(np.arange(6.0)) == 10
    with pytest.raises(IndexError, match="Subtensor"):
        f(np.arange(3.0))


def test_indices_known_only_when_the_program_runs():
    x, i = pt.matrix("x", dtype="float64"), pt.scalar("i", dtype="int64")
    f = agree([x, i], [x[i], x[:i] + 1, pt.set_subtensor(x[i], 0.0)], [matrix(4, 3), np.array(2)])
    assert f(np.arange(6.0).reshape(3, 2), 1)[0].tolist() == [2, 3]


def test_advanced_indexing():
    x, k = pt.matrix("x", dtype="float64"), pt.vector("k", dtype="int64")
    outputs = [
        x[k], x[:, k], x[k, k], x[x > 0].sum(), pt.set_subtensor(x[k], 1.0), pt.inc_subtensor(x[:, k], 2.0),
        x[k].sum(0) + x[0],
    ]  # fmt: skip
    agree([x, k], outputs, [matrix(4, 4), np.array([0, 3, 3])])


def test_writing_into_parts():
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    z = x * 2
    outputs = [
        pt.set_subtensor(x[1:, 0], 5.0), pt.inc_subtensor(x[::2], y), pt.set_subtensor(z[0], y),
        pt.inc_subtensor(z[:, 1], z[:, 0]), pt.set_subtensor(z[:], z[::-1]), z.sum(),
    ]  # fmt: skip
    agree([x, y], outputs, [matrix(4, 3), matrix(3)])


def test_joining_splitting_and_allocating():
    x, y, n = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float32"), pt.scalar("n", dtype="int64")
    a, b = pt.split(x, [1, 2], axis=1)
    outputs = [
        pt.concatenate([x, y]), pt.concatenate([x.T, y.T], axis=1), pt.stack([x.sum(), x.max()]), a + 1,
        b.sum(),
        pt.zeros((x.shape[0], 4)) + 1, pt.alloc(x[0], 5, 3), pt.arange(x.shape[0]), pt.eye(x.shape[1]),
        pt.arange(n), pt.zeros((n, 2)), pt.tile(x, (2, 2)), pt.repeat(x, 2, axis=0), pt.ones_like(x),
    ]  # fmt: skip
    agree([x, y, n], outputs, [matrix(2, 3), matrix(4, 3, dtype="f4"), np.array(4)])


def test_shapes_follow_each_call():
    x = pt.matrix("x", dtype="float64")
    outputs = [x.shape, x.shape[0] * 2, x / x.shape[1], x.size]
    planned = agree([x], outputs, [matrix(2, 3)], [matrix(5, 1)], [matrix(0, 4)], [matrix(2, 3)])
    assert len(planned.vm.tables) == 3


def test_tables_are_kept_within_a_bound():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], x.sum(), mode=PLAN)
    for n in range(40):
        assert f(np.ones(n)) == n
    assert len(f.vm.tables) <= 16
    assert f(np.ones(3)) == 3


def test_softmax_and_its_gradient():
    x = pt.matrix("x", dtype="float64")
    outputs = [softmax(x, axis=1), log_softmax(x, axis=0), pt.grad((log_softmax(x, axis=1) ** 2).sum(), x)]
    agree([x], outputs, [matrix(4, 5)])


def test_nested_graphs():
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    inner = OpFromGraph([x, y], [pt.tanh(x) @ y, x + 1])
    outer = OpFromGraph([x, y], [inner(x, y)[0] * inner(y, x)[1]])
    agree([x, y], [outer(x, y), pt.grad(outer(x, y).sum(), x)], [matrix(3, 3), matrix(3, 3)])


def test_loops():
    x, h = pt.matrix("x", dtype="float64"), pt.vector("h", dtype="float64")
    w = pt.matrix("w", dtype="float64")
    states = pytensor.scan(lambda row, h, w: pt.tanh(row + h @ w), [x], [h], [w], return_updates=False)
    outputs = [states, states[-1], pt.grad(states[-1].sum(), w)]
    agree(
        [x, h, w], outputs, [matrix(4, 3), matrix(3), matrix(3, 3)], [matrix(2, 3), matrix(3), matrix(3, 3)]
    )


def test_branches():
    x, p = pt.vector("x", dtype="float64"), pt.scalar("p", dtype="bool")
    agree([x, p], ifelse(p, x * 2, x.sum() + x), [matrix(3), np.array(True)], [matrix(3), np.array(False)])


def test_linear_algebra_runs_in_python():
    x = pt.matrix("x", dtype="float64")
    agree([x], [pt.linalg.inv(x) @ x, pt.sort(x, axis=0), pt.linalg.det(x) * 2], [matrix(3, 3)])


def test_a_call_is_forgotten_though_python_steps_were_planned_in_it():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], x[x > 0].sum() + x[1:].sum(), mode=PLAN)
    first = np.ones(1000)
    f(first)
    found = weakref.ref(first)
    del first
    f(np.arange(3.0))
    gc.collect()
    assert found() is None


def test_random_draws_advance_their_generator():
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draw = pt.random.normal(size=(4,), rng=rng, return_next_rng=True)
    draws = []
    for mode in (PLAN, REFERENCE):
        rng.set_value(np.random.default_rng(3))
        f = pytensor.function([], draw * 2, updates={rng: following}, mode=mode)
        draws.append([f(), f()])
    np.testing.assert_array_equal(*draws)
    assert (draws[0][0] != draws[0][1]).all()


def test_results_are_the_callers():
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.ones(3), name="w")
    f = pytensor.function([x], [x * 2, w, x, w + 0, w[1:]], updates={w: w + x}, mode=PLAN)
    given = np.arange(3.0)
    first = f(given)
    kept = [result.copy() for result in first]
    f(given + 1)
    for result, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(result, copy)
    first[2][:] = -1
    assert given.tolist() == [0, 1, 2]
    assert first[1].tolist() == [1, 1, 1]
    assert w.get_value().tolist() == [2, 4, 6]


def test_borrowed_inputs_are_not_written():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([In(x, borrow=True)], Out(pt.exp(x) + x, borrow=True), mode=PLAN)
    given = np.arange(3.0)
    given.flags.writeable = False
    np.testing.assert_allclose(f(given), np.exp(given) + given)


def test_updates_are_written_in_their_cells():
    w = pytensor.shared(matrix(4, 3), name="w")
    b = pytensor.shared(matrix(3), name="b")
    x = pt.matrix("x", dtype="float64")
    loss = (pt.tanh(x @ w + b) ** 2).sum()
    gw, gb = pt.grad(loss, [w, b])
    first = w.get_value(), b.get_value()
    values = matrix(5, 4)
    after = []
    for mode in (PLAN, REFERENCE):
        w.set_value(first[0])
        b.set_value(first[1])
        f = pytensor.function([x], loss, updates={w: w - 0.1 * gw, b: b - 0.1 * gb}, mode=mode)
        cell = w.get_value(borrow=True)
        losses = [f(values) for _ in range(3)]
        if mode is PLAN:
            assert w.get_value(borrow=True) is cell
            (table,) = f.vm.tables.values()
            assert not table.finish.commits
        after.append((losses, w.get_value(), b.get_value()))
    for have, want in zip(*after, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-10)


def test_cells_that_change_places():
    a, b = pytensor.shared(np.zeros(3), name="a"), pytensor.shared(np.ones(3), name="b")
    f = pytensor.function([], [a + b], updates={a: b, b: a}, mode=PLAN)
    f()
    assert a.get_value().tolist() == [1, 1, 1]
    assert b.get_value().tolist() == [0, 0, 0]
    f()
    assert a.get_value().tolist() == [0, 0, 0]


def test_cells_that_follow_each_other():
    a, b, c = (pytensor.shared(np.full(2, float(k)), name=name) for k, name in enumerate("abc"))
    f = pytensor.function([], c * 10, updates={a: a + 1, b: a * 2, c: a + b}, mode=PLAN)
    assert f().tolist() == [20, 20]
    assert [v.get_value().tolist() for v in (a, b, c)] == [[1, 1], [0, 0], [1, 1]]
    f()
    assert [v.get_value().tolist() for v in (a, b, c)] == [[2, 2], [2, 2], [1, 1]]


def test_two_cells_with_one_new_value():
    a, b = pytensor.shared(np.zeros(3), name="a"), pytensor.shared(np.ones(3), name="b")
    new = a + 1
    f = pytensor.function([], new, updates={a: new, b: new}, mode=PLAN)
    assert f().tolist() == [1, 1, 1]
    assert f().tolist() == [2, 2, 2]
    assert a.get_value(borrow=True) is not b.get_value(borrow=True)
    assert b.get_value().tolist() == [2, 2, 2]


def test_a_cell_may_grow_and_be_replaced():
    a = pytensor.shared(np.zeros(1), name="a", shape=(None,))
    f = pytensor.function([], a.sum(), updates={a: pt.concatenate([a, a + 1])}, mode=PLAN)
    assert [float(f()) for _ in range(4)] == [0, 1, 4, 12]
    a.set_value(np.array([5.0, 6.0]))
    assert f() == 11
    assert a.get_value().tolist() == [5, 6, 6, 7]


def test_a_transposed_update_is_read_before_it_is_written():
    w = pytensor.shared(np.arange(9.0).reshape(3, 3), name="w")
    f = pytensor.function([], w.sum(0), updates={w: w.T + w}, mode=PLAN)
    want = w.get_value()
    f()
    np.testing.assert_array_equal(w.get_value(), want.T + want)


def test_an_error_leaves_the_state_as_it_was():
    w = pytensor.shared(np.ones(3), name="w")
    x = pt.vector("x", dtype="float64")
    checked = Assert("x is to be positive")(x, (x > 0).all())
    f = pytensor.function([x], checked.sum(), updates={w: w * 2}, mode=PLAN)
    assert f(np.ones(3)) == 3
    with pytest.raises(AssertionError, match="x is to be positive"):
        f(-np.ones(3))
    assert w.get_value().tolist() == [2, 2, 2]
    f(np.ones(3))
    assert w.get_value().tolist() == [4, 4, 4]


def test_sizes_that_do_not_fit_raise_as_pytensor_does():
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    f = pytensor.function([x, y], x + y, mode=PLAN)
    with pytest.raises(ValueError, match=r"[Ii]ncompatible|mismatch|broadcast"):
        f(np.ones(3), np.ones(4))
    g = pytensor.function([x, y], pt.dot(x[None, :], y[:, None]), mode=PLAN)
    with pytest.raises(ValueError, match="mismatch"):
        g(np.ones(3), np.ones(4))


def test_numba_is_not_imported():
    import subprocess
    import sys

    code = (
        "import sys, numpy as np, pytensor, pytensor.tensor as pt;"
        "from ptml.backends.numba.plan import PLAN;"
        "x = pt.matrix(); f = pytensor.function([x], pt.exp(x @ x).sum(0), mode=PLAN);"
        "f(np.eye(2, dtype=x.dtype)); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", ["uint32", "float32", "float64"])
def test_draws_are_the_words_of_every_backend(dtype):
    leaf, number = pt.vector("leaf", dtype="uint32", shape=(4,)), pt.scalar("number", dtype="uint32")
    n, k = pt.scalar("n", dtype="int64"), pt.vector("k", dtype="uint32")
    words = np.array([1, 2, 3, 4], "uint32")
    for size in (0, 1, 2, 7, 64):
        outputs = [Draw(dtype)(leaf, number, k.shape[0], 3), Draw(dtype)(FoldIn()(leaf, number), number, 5)]
        agree([leaf, number, k], outputs, [words, np.uint32(9), np.zeros(size, "uint32")])
    agree([leaf, number, n], Draw(dtype)(leaf, number, n), [words, np.uint32(9), np.array(6)])


def test_labels_that_are_no_classes_raise_and_leave_the_state():
    w = pytensor.shared(np.ones(3), name="w")
    labels = pt.vector("labels", dtype="int64")
    checked = CheckLabels("Loss", ignore=-100)(labels, 3)
    f = pytensor.function([labels], checked.sum(), updates={w: w * 2}, mode=PLAN)
    assert f([0, 1, 2, -100]) == -97
    for wrong in ([0, 3], [-1], [0, 1, -101]):
        with pytest.raises(ValueError, match=r"Loss: label .* is not one of the 3 classes"):
            f(wrong)
    assert f(np.arange(6)[::-1] // 2) == 6
    assert w.get_value().tolist() == [4, 4, 4]


def test_numbers_that_are_no_probabilities_raise():
    p = pt.matrix("p", dtype="float32")
    f = pytensor.function([p], CheckProbabilities("Loss")(p) * 1, mode=PLAN)
    assert f(np.array([[0.0, 1.0], [np.nan, 0.5]], "f4")).shape == (2, 2)
    with pytest.raises(ValueError, match=r"Loss: target 1\.5 is not between 0 and 1"):
        f(np.array([[0.0, 1.5]], "f4"))


def test_a_result_that_is_a_cell_is_its_value_before_the_call():
    x = pt.vector("x", dtype="float64")
    w, v = pytensor.shared(np.ones(2), name="w"), pytensor.shared(np.zeros(2), name="v")
    f = pytensor.function([x], [w], updates={w: x, v: x}, mode=PLAN)
    assert [f(np.full(2, k))[0].tolist() for k in (5.0, 6.0)] == [[1, 1], [5, 5]]
    assert w.get_value().tolist() == v.get_value().tolist() == [6, 6]
    assert w.get_value(borrow=True) is not v.get_value(borrow=True)


def test_loops_that_stop_by_themselves():
    n = pt.scalar("n", dtype="int64")

    def doubled(value, n):
        return value * 2, until(value > n)

    start = pt.constant(1, dtype="int64")
    powers = pytensor.scan(doubled, None, [start], [n], n_steps=20, return_updates=False)
    agree([n], [powers, powers[-1]], [np.array(10)], [np.array(100)])


def test_a_cell_that_cannot_be_written_is_replaced_by_one_that_can():
    w = pytensor.shared(np.ones(3), name="w")
    f = pytensor.function([], updates={w: w * 2}, mode=PLAN)
    frozen = np.ones(3)
    frozen.flags.writeable = False
    w.set_value(frozen, borrow=True)
    f()
    assert frozen.tolist() == [1, 1, 1]
    cell = w.get_value(borrow=True)
    f()
    assert w.get_value(borrow=True) is cell
    assert cell.tolist() == [4, 4, 4]


def test_functions_can_be_copied_given_other_cells_and_pickled():
    x = pt.vector("x", dtype="float64")
    w, v = pytensor.shared(1.0, name="w"), pytensor.shared(10.0, name="v")
    f = pytensor.function([x], x * w, updates={w: w + 1}, mode=PLAN)
    ones = np.ones(2)
    assert f.copy()(ones).tolist() == [1, 1]
    assert f(ones).tolist() == [2, 2]
    assert f.copy(swap={w: v})(ones).tolist() == [10, 10]
    assert (w.get_value(), v.get_value()) == (3, 11)
    assert pickle.loads(pickle.dumps(f))(ones).tolist() == [3, 3]
    assert w.get_value() == 3


def test_kinds_of_variables_that_are_no_arrays():
    matrix, x = sparse.csc_matrix("m", dtype="float64"), pt.matrix("x", dtype="float64")
    product = sparse.dot(matrix, x) * 2
    f = pytensor.function([matrix, x], product, mode=PLAN)
    np.testing.assert_array_equal(f(scipy.sparse.csc_matrix(np.eye(2)), np.ones((2, 1))), [[2], [2]])
    number = ps.float64("number")
    assert pytensor.function([number], number * 2, mode=PLAN)(2.0) == 4
    assert pytensor.function([], pt.constant([1.0, 2.0]), mode=PLAN)().tolist() == [1, 2]


class Lenient(CheckProbabilities):
    """A check whose Python finds nothing wrong."""

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0]


def test_a_kernel_that_disagrees_with_its_node_is_a_bug_to_report():
    p = pt.vector("p", dtype="float64")
    f = pytensor.function([p], Lenient("Loss")(p) * 1, mode=PLAN)
    assert f(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="found something wrong, and its Python does not"):
        f(np.full(2, 2.0))


def test_large_products_and_small_ones_use_the_same_numbers():
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float32")
    a, b = matrix(200, 200, dtype="f4"), matrix(200, 200, dtype="f4")
    agree([x, y], [x @ y, x[:9] @ y], [a, b], rtol=1e-4, atol=1e-3)
