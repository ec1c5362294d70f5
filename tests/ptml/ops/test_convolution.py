"""Convolution and its adjoints: what they compute, on every backend, and what their kernels do."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.fused import Fused
from ptml.ops.convolution import Convolve, ConvolveKernel, ConvolveTransposed

PYTHON = Mode("py", "fast_compile")

#: The shape of the data, kernel sizes, strides, dilations, padding, groups, channels that come out.
FORMS = {
    "sequence": ((2, 7, 4), (3,), (2,), (1,), ((1, 0),), 1, 3),
    "pointwise": ((2, 5, 3), (1,), (1,), (1,), ((0, 0),), 1, 2),
    "stride longer than the kernel": ((1, 9, 2), (2,), (4,), (1,), ((0, 0),), 1, 2),
    "rest that no window reaches": ((2, 8, 9, 2), (2, 3), (3, 2), (1, 1), ((0, 0), (0, 0)), 1, 2),
    "image": ((2, 6, 5, 3), (3, 2), (1, 1), (1, 1), ((1, 1), (0, 1)), 1, 18),
    "one channel": ((3, 9, 9, 1), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 1, 16),
    "groups": ((2, 7, 6, 4), (3, 2), (2, 1), (1, 2), ((1, 0), (2, 1)), 2, 6),
    "depthwise": ((2, 6, 6, 19), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 19, 19),
    "depthwise, several of each": ((1, 5, 6, 2), (3, 2), (2, 1), (1, 1), ((1, 1), (0, 0)), 2, 4),
    "wide": ((1, 3, 9, 5), (2, 2), (1, 1), (1, 2), ((1, 0), (1, 1)), 1, 35),
    "volume": ((1, 4, 5, 6, 2), (2, 2, 2), (1, 2, 1), (1, 1, 2), ((0, 0), (1, 1), (1, 0)), 1, 3),
}


def by_definition(X, W, G, stride, dilation, padding, groups):
    """Give the convolution of X and W, and the gradients of its inner product with G by both."""
    n, kernel, (each, out) = len(stride), W.shape[: len(stride)], W.shape[-2:]
    ends = [(0, 0), *padding, (0, 0)]
    X = np.pad(X, ends)
    counts = [(X.shape[1 + a] - dilation[a] * (kernel[a] - 1) - 1) // stride[a] + 1 for a in range(n)]
    Y, dX, dW = np.zeros((X.shape[0], *counts, out)), np.zeros(X.shape), np.zeros(W.shape)
    for i in np.ndindex(*counts):
        for t in np.ndindex(*kernel):
            at = (slice(None), *(i[a] * stride[a] + t[a] * dilation[a] for a in range(n)))
            for g in range(groups):
                read, own = slice(g * each, (g + 1) * each), slice(g * out // groups, (g + 1) * out // groups)
                x = X[at][:, read]
                Y[(slice(None), *i, own)] += x @ W[t][:, own]
                if G is not None:
                    y = G[(slice(None), *i, own)]
                    dX[at][:, read] += y @ W[t][:, own].T
                    dW[t][:, own] += x.T @ y
    inside = tuple(slice(a, n - b) for n, (a, b) in zip(X.shape, ends, strict=True))
    return Y, dX[inside], dW


def correlated(X, W, *rest):
    """Give the convolution alone."""
    return by_definition(X, W, None, *rest)[0]


def _values(name, dtype="float64"):
    shape, kernel, stride, dilation, padding, groups, out = FORMS[name]
    rng = np.random.default_rng(list(name.encode()))
    X = rng.normal(size=shape)
    W = rng.normal(size=(*kernel, shape[-1] // groups, out))
    b = rng.normal(size=out)
    Y = correlated(X, W, stride, dilation, padding, groups)
    G = rng.normal(size=Y.shape)
    return [v.astype(dtype) for v in (X, W, b, G)]


def _graph(name, dtype, static=True):
    shape, kernel, stride, dilation, padding, groups, out = FORMS[name]
    kernel_shape = (*kernel, shape[-1] // groups, out)
    none = (None,) * len(shape)
    X = pt.tensor("X", dtype=dtype, shape=(None, *shape[1:]) if static else none)
    W = pt.tensor("W", dtype=dtype, shape=kernel_shape if static else none)
    b = pt.tensor("b", dtype=dtype, shape=(out,) if static else (None,))
    Y = Convolve(kernel, stride, dilation, padding, groups)(X, W, b)
    G = Y.type("G")
    return [X, W, b, G], [Y, *pytensor.grad((Y * G).sum(), [X, W, b])]


def _check(backend, dtype, static, names, rtol):
    graphs = {name: _graph(name, dtype, static) for name in names}
    inputs = [x for given, _ in graphs.values() for x in given]
    outputs = [y for _, made in graphs.values() for y in made]
    program = ptml.function(inputs, outputs, backend=backend)
    results = iter(program(*(v for name in names for v in _values(name, dtype))))
    for name in names:
        X, W, b, G = _values(name)
        Y, dX, dW = by_definition(X, W, G, *FORMS[name][2:6])
        for right in (Y + b, dX, dW, G.sum(axis=tuple(range(G.ndim - 1)))):
            got = np.asarray(next(results))
            assert str(got.dtype) == dtype
            np.testing.assert_allclose(got, right, rtol=rtol, atol=rtol, err_msg=name)


def test_every_backend_gives_what_the_definition_says(backend):
    # C computes the graph, and takes a minute to compile all of them.
    _check(backend, "float32", True, ["sequence", "groups"] if backend == "c" else list(FORMS), 1e-4)


@pytest.mark.parametrize("static", [True, False])
def test_double_precision_and_sizes_that_are_known_late(static):
    _check("numba", "float64", static, list(FORMS), 1e-10)


@pytest.mark.parametrize("name", FORMS)
def test_kernels_give_what_the_graph_gives_of_any_layout(name):
    inputs, outputs = _graph(name, "float64", static=False)
    values = _values(name)
    python = pytensor.function(inputs, outputs, mode=PYTHON)
    plan = ptml.function(inputs, outputs, backend="numba")
    strided = [np.repeat(v, 2, axis=-1)[..., ::2] for v in values]
    for given in (values, [np.asfortranarray(v) for v in values], strided):
        for got, right in zip(plan(*given), python(*values), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-11, atol=1e-11)


def test_an_empty_batch_gives_empty_results_and_gradients_of_zero():
    inputs, outputs = _graph("image", "float64")
    X, W, b, G = _values("image")
    Y, dX, dW, db = ptml.function(inputs, outputs, backend="numba")(X[:0], W, b, G[:0])
    assert Y.shape == (0, *G.shape[1:])
    assert dX.shape == (0, *X.shape[1:])
    assert dW.shape == W.shape
    assert not dW.any()
    assert not db.any()


def test_the_ops_are_adjoints_of_one_another_and_shapes_are_known():
    for name, (shape, *form, out) in FORMS.items():
        kernel, groups = form[0], form[4]
        X = pt.tensor("X", shape=(None, *shape[1:]))
        W = pt.tensor("W", shape=(*kernel, shape[-1] // groups, out))
        Y = Convolve(*form)(X, W)
        by_X, by_W = pytensor.grad(Y.sum(), [X, W])
        assert type(by_X.owner.op) is ConvolveTransposed
        assert type(by_W.owner.op) is ConvolveKernel
        assert by_X.type.shape == X.type.shape, name
        assert by_W.type.shape == W.type.shape, name
        assert Y.type.shape[1:] == correlated(np.zeros(shape), np.zeros(W.type.shape), *form[1:]).shape[1:]


@pytest.mark.parametrize("name", ["sequence", "groups", "rest that no window reaches", "depthwise"])
def test_second_derivatives_are_those_of_the_trilinear_form(name):
    (X, W, b, G), (_, by_X, by_W, _) = _graph(name, "float64", static=False)
    U, V = X.type("U"), W.type("V")
    # d/dX of <by_W, V> and d/dW of <by_X, U> are the adjoints with V, U in W's, X's place.
    first = pytensor.grad((by_W * V).sum(), [X, G])
    second = pytensor.grad((by_X * U).sum(), [W, G])
    f = ptml.function([X, W, b, G, U, V], [*first, *second], backend="numba", on_unused_input="ignore")
    x, w, bias, g = _values(name)
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=x.shape), rng.normal(size=w.shape)
    rest = FORMS[name][2:6]
    _, of_v, of_u = by_definition(u, v, g, *rest)
    wanted = [of_v, correlated(x, v, *rest), of_u, correlated(u, w, *rest)]
    for got, right in zip(f(x, w, bias, g, u, v), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sequence", "groups"])
def test_what_the_ops_know_of_their_graphs_is_so(name):
    x, w, b, g = _values(name)
    (X, W, bias, G), _ = _graph(name, "float64", static=False)
    form = FORMS[name][1:6]
    for op, inputs, values in (
        (Convolve(*form), [X, W, bias], [x, w, b]),
        (ConvolveTransposed(*form), [G, W, X], [g, w, x]),
        (ConvolveTransposed(*form, extra=(1,) * len(form[0])), [G, W], [g, w]),
        (ConvolveKernel(*form, bias=True), [X, G], [x, g]),
    ):
        node = op(*inputs, return_list=True)[0].owner
        built = op.build(*inputs)
        assert [v.type.ndim for v in node.outputs] == [v.type.ndim for v in built]
        assert all(known.type.is_super(v.type) for known, v in zip(node.outputs, built, strict=True))
        inferred = [pt.stack(sizes) for sizes in op.infer_shape(node, [tuple(v.shape) for v in inputs])]
        f = pytensor.function(inputs, [*inferred, *built], mode=PYTHON)
        found = f(*values)
        for sizes, value in zip(found[: len(built)], found[len(built) :], strict=True):
            assert tuple(sizes) == value.shape
        assert op.connection_pattern(node) == Fused.connection_pattern(op, node)


def test_the_sum_for_a_bias_has_gradients_of_its_own():
    X, Y = pt.tensor3("X", dtype="float64"), pt.tensor3("Y", dtype="float64")
    _, b = ConvolveKernel((2,), (1,), (1,), ((0, 0),), bias=True)(X, Y)
    v = pt.vector("v")
    by_Y = pytensor.grad((b * v).sum(), Y)
    f = ptml.function([X, Y, v], [b, by_Y], backend="numba", on_unused_input="ignore")
    x, y = np.zeros((2, 4, 1)), np.arange(12.0).reshape(2, 3, 2)
    total, back = f(x, y, np.array([2.0, 5.0]))
    assert total.tolist() == [30.0, 36.0]
    assert back.tolist() == np.broadcast_to([2.0, 5.0], (2, 3, 2)).tolist()
