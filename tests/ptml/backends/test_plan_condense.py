"""Updates as one node each, and that rewriting for a plan loses no precision."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

import ptml
from ptml.backends.numba.plan import PLAN
from ptml.backends.numba.plan.condense import condensed
from ptml.backends.numba.plan.linker import QUERY
from ptml.layers import Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, compile_train, sgd
from ptml_state import Role, Slot


def zeros(rng, shape, dtype):
    return np.zeros(shape, dtype)


def leaf(name, shape=(3,)):
    return Slot(name, Role.OPTIMIZER, "float64", shape, zeros).handle


def composites(program):
    nodes = program.function.maker.fgraph.apply_nodes
    return {node.op for node in nodes if isinstance(getattr(node.op, "scalar_op", None), Composite)}


def condense(new_values, others=()):
    return condensed(new_values, others, QUERY.excluding("fusion"))


def test_leaves_that_differ_by_their_operands_alone_share_one_op():
    layers = [Linear(f"fc{k}", n_in=4, n_out=4) for k in range(8)]
    loss, _ = supervised_loss(Sequential(*layers)(Input("X", (None, 4))), SquaredError())
    ops = [op for op in composites(compile_train(loss, adam(1e-3), seed=0)) if op.scalar_op.nout == 3]
    assert len(ops) <= 3  # matrices, vectors, and the scalars that they have in common


def test_a_group_is_one_node_with_an_output_for_each_leaf():
    p, v, g = leaf("p"), leaf("v"), pt.vector("g", shape=(3,))
    velocity = 0.9 * v + g
    new = condense([p - 0.1 * velocity, velocity])
    assert new[0].owner is new[1].owner
    assert isinstance(new[0].owner.op, Elemwise)
    f = pytensor.function([p, v, g], new, mode="FAST_COMPILE")
    moved, kept = f([1.0, 2.0, 3.0], [1.0, 0.0, -1.0], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(kept, [1.4, 0.5, -0.4], rtol=1e-15)
    np.testing.assert_allclose(moved, np.array([1.0, 2.0, 3.0]) - 0.1 * kept, rtol=1e-15)


def test_what_something_else_reads_stays_as_it_is():
    p, g = leaf("p"), pt.vector("g", shape=(3,))
    new = p - 0.1 * (g * g)
    assert condense([new], [new.sum()]) == [new]
    assert condense([new], [new]) == [new]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda x: pt.log(1 + pt.exp(x)), 800.0),
        (lambda x: pt.exp(x) / (1 + pt.exp(x)), 1.0),
        (lambda x: 3.0 * pt.exp(x) / (1 + pt.exp(x)), 3.0),
        (lambda x: (pt.exp(x * 1e-21) - 1) * 1e18, 0.8),
    ],
)
def test_what_may_have_to_be_stabilized_is_left_to_the_rewrites_that_do(make, wanted):
    p = leaf("p")
    program = ptml.function([], [], updates={p: 2.0 * make(p + 800.0) + p}, seed=0, backend="numba")
    program()
    np.testing.assert_allclose(program.state["p"], 2.0 * wanted, rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "at", "wanted"),
    [
        (lambda x: pt.log(pt.exp(x).sum()), [1000.0, 1000.0], 1000 + np.log(2)),
        (lambda x: pt.log(1 + x[0]), [1e-18, 0.0], 1e-18),
        (lambda x: pt.exp(x[0]) - 1, [1e-18, 0.0], 1e-18),
        (lambda x: pt.log(1 + pt.exp(x[0])), [-800.0, 0.0], 0.0),
        (lambda x: pt.log(1 + pt.exp(x[0])), [800.0, 0.0], 800.0),
        (lambda x: pt.log(pt.sigmoid(x[0])), [-800.0, 0.0], -800.0),
        (lambda x: pt.log(1 - pt.sigmoid(x[0])), [800.0, 0.0], -800.0),
        (lambda x: pt.log(pt.special.softmax(x))[0], [-800.0, 0.0], -800.0),
    ],
)
def test_no_rewrite_for_precision_is_lost(make, at, wanted):
    x = pt.dvector("x")
    f = pytensor.function([x], make(x), mode=PLAN)
    np.testing.assert_allclose(f(at), wanted, rtol=1e-12, atol=1e-300)


def test_a_kernel_is_the_same_for_every_rate():
    loss, _ = supervised_loss(Linear("fc", n_in=4, n_out=4)(Input("X", (None, 4))), SquaredError())
    one = composites(compile_train(loss, sgd(0.1, momentum=0.9), seed=0))
    other = composites(compile_train(loss, sgd(0.037, momentum=0.8), seed=0))
    assert one == other
