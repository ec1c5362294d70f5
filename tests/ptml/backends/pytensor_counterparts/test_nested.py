"""Graphs within graphs and branches, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.conditional.op import ifelse
from pytensor.graph.replace import vectorize_graph

RNG = np.random.default_rng(18)


def numbers(*shape):
    return RNG.normal(size=shape)


def test_graphs_in_graphs(same_on_both):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    inner = OpFromGraph([x, y], [pt.tanh(x) @ y, x + 1])
    middle = OpFromGraph([x, y], [inner(x, y)[0] * inner(y, x)[1], x])
    outer = OpFromGraph([x], [middle(x, x * 2)[0].sum(0)])
    first, second = middle(x, y)
    outputs = [
        first,
        second,
        outer(x),
        outer(first),
        pt.grad(first.sum(), [x, y])[0],
        pt.grad(outer(x).sum(), x),
    ]
    same_on_both([x, y], outputs, [numbers(3, 3), numbers(3, 3)])


def test_a_graph_that_gives_its_input_and_a_constant(same_on_both):
    x = pt.vector("x", dtype="float64")
    op = OpFromGraph([x], [x, pt.constant([1.0, 2.0]), x[::-1]])
    same_on_both([x], [*op(x), op(x)[0] + op(x * 2)[2]], [numbers(2)])


def test_a_gradient_of_ones_own(same_on_both):
    x = pt.vector("x", dtype="float64")
    op = OpFromGraph([x], [pt.round(x)], pullback=lambda inputs, outputs, grads: [grads[0] * 2])
    same_on_both([x], [op(x), pt.grad((op(x) * x).sum(), x)], [numbers(4)])


def test_a_graph_over_a_batch(same_on_both):
    x, m = pt.vector("x", dtype="float64"), pt.matrix("m", dtype="float64")
    op = OpFromGraph([x], [pt.exp(x - x.max()) / x.sum()])
    batched = vectorize_graph(op(x), {x: m})
    same_on_both([m], [batched], [numbers(3, 4)], kernels=False)


def test_branches_of_one_shape(same_on_both):
    p, x, y = pt.scalar("p", dtype="bool"), pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    both = ifelse(p, [x * 2, x.sum()], [y + 1, y.max()])
    outputs = [*both, ifelse(x.sum() > 0, x, y), pt.grad(ifelse(p, x**2, y).sum(), x)]
    call = [numbers(3, 3), numbers(3, 3)]
    same_on_both([p, x, y], outputs, [np.bool_(True), *call], [np.bool_(False), call[1], call[0].T])


def test_branches_of_two_shapes_run_in_python(same_on_both):
    p, x, y = pt.scalar("p", dtype="bool"), pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    calls = [[np.bool_(p), numbers(3), numbers(2)] for p in (True, False)]
    same_on_both([p, x, y], [ifelse(p, x, y) * 2], *calls, kernels=False)


def test_an_error_in_a_graph_in_a_graph_raises(fails_alike):
    x, k = pt.vector("x", dtype="float64"), pt.vector("k", dtype="int64")
    inner = OpFromGraph([x, k], [x[k] * 2])
    outer = OpFromGraph([x, k], [inner(x, k) + 1])
    fails_alike([x, k], outer(x, k), [numbers(3), [0, 2]], [numbers(3), [3]], "out of bounds")
