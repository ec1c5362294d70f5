"""One kernel call for many leaves, against PyTensor's Python linker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.raise_op import Assert
from pytensor.tensor.elemwise import Elemwise

from ptml.backends.numba.plan import PLAN
from ptml.threads import get_threads, set_threads

REFERENCE = Mode(linker="py", optimizer="fast_compile")
SHAPES = [(3, 4), (4,), (4, 5), (5,), (5, 1), (1,), (), (2, 3, 4), (0, 3), (7,)]


def adam(leaves, gradients, rate):
    """Give Adam's updates of shared variables, with moments of their dtypes."""
    count = pytensor.shared(np.zeros((), "float64"), "count")
    updates = {count: count + 1}
    for leaf, gradient in zip(leaves, gradients, strict=True):
        dtype, shape = leaf.type.dtype, leaf.get_value().shape
        mean = pytensor.shared(np.zeros(shape, dtype), f"mean_{leaf.name}", shape=shape)
        square = pytensor.shared(np.zeros(shape, dtype), f"square_{leaf.name}", shape=shape)
        ahead = pt.cast(count + 1, dtype)
        keep, spread = np.asarray(0.9, dtype), np.asarray(0.99, dtype)
        new_mean = keep * mean + (1 - keep) * gradient
        new_square = spread * square + (1 - spread) * gradient**2
        unbiased = pt.sqrt(new_square / (1 - spread**ahead)) + np.asarray(1e-8, dtype)
        updates[mean], updates[square] = new_mean, new_square
        updates[leaf] = leaf - pt.cast(rate, dtype) * new_mean / (1 - keep**ahead) / unbiased
    return updates


def run(build, mode, calls, n_leaves, dtypes=("float64",), shapes=SHAPES):
    """Build updates of fresh leaves, call them, and give the function, its results and all cells."""
    rng = np.random.default_rng(3)
    leaves = []
    for k in range(n_leaves):
        value = rng.normal(size=shapes[k % len(shapes)]).astype(dtypes[k % len(dtypes)])
        # Static sizes of 1 are what a layer of one unit has.
        leaves.append(pytensor.shared(value, f"leaf{k}", shape=value.shape))
    x = pt.vector("x", dtype="float64")
    outputs, updates = build(x, leaves)
    f = pytensor.function([x], outputs, updates=updates, mode=mode, on_unused_input="ignore")
    results = [[np.array(value) for value in f(np.array(call))] for call in calls]
    return f, results, [cell.get_value() for cell in updates]


def agree(build, n_leaves=10, calls=((0.5, 1.0), (-0.3, 2.0), (0.1, 0.2)), rtol=1e-10, **options):
    """Run on both linkers, compare everything, and give the kernels' number in the plan."""
    f, have, cells = run(build, PLAN, calls, n_leaves, **options)
    _, want, reference = run(build, REFERENCE, calls, n_leaves, **options)
    for some, others in ((have, want), ([cells], [reference])):
        for values, expected in zip(some, others, strict=True):
            for value, other in zip(values, expected, strict=True):
                assert (value.shape, value.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(value, other, rtol=rtol, atol=1e-12)
    return sum(table.n_kernels for table in f.vm.tables.values())


def gradients(x, leaves):
    """Give something for each leaf that a gradient might be."""
    return [pt.cast(x[0], leaf.dtype) * leaf + pt.cast(x[1], leaf.dtype) for leaf in leaves]


def adam_of_all(x, leaves):
    return [x.sum()], adam(leaves, gradients(x, leaves), 0.01 * x[1])


def test_updates_of_leaves_of_any_shape_agree_with_python():
    agree(adam_of_all, n_leaves=20)


def test_updates_of_leaves_of_two_dtypes_agree_with_python():
    agree(adam_of_all, n_leaves=20, dtypes=("float32", "float64", "float32"), rtol=2e-5)


def test_a_hundred_leaves_take_as_many_kernel_calls_as_two():
    shapes = [(3, 4), (4,)]
    few, many = (agree(adam_of_all, n_leaves=n, shapes=shapes, calls=((0.5, 1.0),)) for n in (2, 100))
    assert few == many


def sgd_with_momentum(x, leaves):
    updates = {}
    for leaf, gradient in zip(leaves, gradients(x, leaves), strict=True):
        shape = leaf.get_value().shape
        velocity = pytensor.shared(np.zeros(shape), f"v_{leaf.name}", shape=shape)
        updates[velocity] = 0.9 * velocity + gradient
        updates[leaf] = leaf - x[0] * updates[velocity]
    return [], updates


def test_leaves_of_one_element_join_the_others():
    # PyTensor's fusion makes one node of several such leaves of one shape.
    shapes = [(3, 4), (4,), (5, 1), (1,), (1, 1)]
    assert agree(sgd_with_momentum, n_leaves=5, shapes=shapes, calls=((0.5, 1.0),)) == 1


def test_leaves_of_one_element_alone_are_one_kernel_call():
    assert agree(sgd_with_momentum, n_leaves=2, shapes=[(1,), (1, 1)], calls=((0.5, 1.0),)) == 1


def test_composites_that_name_their_operands_in_another_order_are_one_form():
    a, b, c = (ps.float64(name) for name in "abc")
    product, total = a * b + c, a - b * 2.0
    swapped = b * a + c, a - b * 2.0
    orders = [
        ps.Composite([a, b, c], [product, total]),
        ps.Composite([c, a, b], [swapped[1], swapped[0]]),
        ps.Composite([b, c, a], [swapped[0], swapped[1]]),
    ]
    operands = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, 3, 5))
    inputs = [[pt.vector(dtype="float64") for _ in range(3)] for _ in range(3)]
    outputs = []
    for op, order, x in zip(orders, operands, inputs, strict=True):
        outputs += Elemwise(op)(*(x[k] for k in order))
    f = pytensor.function([x for row in inputs for x in row], outputs, mode=PLAN.excluding("fusion"))
    have = f(*values.reshape(9, 5))
    x, y, z = values.transpose(1, 0, 2)
    for k, (first, second) in enumerate([(0, 1), (1, 0), (0, 1)]):
        np.testing.assert_allclose(have[2 * k + first], x[k] * y[k] + z[k])
        np.testing.assert_allclose(have[2 * k + second], x[k] - 2 * y[k])
    (table,) = f.vm.tables.values()
    assert table.n_kernels == 1


def clipped(x, leaves):
    """Give steps that a global norm and the largest coordinate bound."""
    grads = gradients(x, leaves)
    largest = pt.max(pt.stack([pt.max(abs(g)) for g in grads]))
    norm = pt.sqrt(pt.sum(pt.stack([pt.sum(pt.sqr(g / largest)) for g in grads]))) * largest
    factor = pt.minimum(1.0, 1.0 / norm)
    return [norm], {leaf: leaf - 0.1 * factor * g for leaf, g in zip(leaves, grads, strict=True)}


def averaged(x, leaves):
    """Give updates of leaves, and averages that read the new values."""
    updates = {}
    for leaf, gradient in zip(leaves, gradients(x, leaves), strict=True):
        average = pytensor.shared(leaf.get_value(), f"average_{leaf.name}")
        updates[leaf] = leaf - 0.1 * gradient
        updates[average] = 0.9 * average + 0.1 * updates[leaf]
    return [], updates


def averaged_before(x, leaves):
    """Give updates of leaves, and averages of the old values."""
    updates = {}
    for leaf, gradient in zip(leaves, gradients(x, leaves), strict=True):
        average = pytensor.shared(leaf.get_value(), f"average_{leaf.name}")
        updates[leaf] = leaf - 0.1 * gradient
        updates[average] = pt.tanh(average) + leaf
    return [], updates


def shown(x, leaves):
    """Give old and new values of leaves as results too."""
    updates = {leaf: leaf * x[0] + x[1] for leaf in leaves}
    return [leaves[0], updates[leaves[0]], updates[leaves[1]], leaves[2] * 2], updates


def passed_on(x, leaves):
    """Give each leaf what its neighbour has, so that none can be written before the next is read."""
    return [], {leaf: 0.5 * after + x[0] for leaf, after in zip(leaves, leaves[1:] + leaves[:1], strict=True)}


def passed_down(x, leaves):
    """Give each leaf what the next one has, which can be written in place in one order."""
    return [], {leaf: 0.5 * after + x[0] for leaf, after in pairwise(leaves)}


def swapped(x, leaves):
    return [], {leaves[0]: leaves[1], leaves[1]: leaves[0], leaves[2]: leaves[2] * 2}


def strided(x, leaves):
    """Give gradients that do not lie flat: transposed, reversed, broadcast."""
    steps = [leaf.T[::-1].copy().T if leaf.ndim == 2 else leaf[::-1] for leaf in leaves]
    return [], {leaf: leaf - x[0] * step for leaf, step in zip(leaves, steps, strict=True)}


def broadcast(x, leaves):
    return [], {leaf: leaf * x[0] + leaf.sum(0, keepdims=True) for leaf in leaves}


BUILDS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "momentum": (sgd_with_momentum, SHAPES),
    "global norm": (clipped, [s for s in SHAPES if 0 not in s]),
    "averages of new values": (averaged, SHAPES),
    "averages of old values": (averaged_before, SHAPES),
    "results": (shown, SHAPES),
    "in a circle": (passed_on, [(3, 4)]),
    "in a row": (passed_down, [(3, 4)]),
    "swapped": (swapped, [(3, 4)]),
    "strided": (strided, [(3, 4), (4,), (4, 4), (1, 5), (5, 1)]),
    "broadcast": (broadcast, [(3, 4), (4,), (1, 5), (5, 1)]),
}


@pytest.mark.parametrize("name", BUILDS)
def test_updates_of_every_kind_agree_with_python(name):
    build, shapes = BUILDS[name]
    agree(build, n_leaves=2 * len(shapes) + 3, shapes=shapes)


@pytest.mark.parametrize(
    "name", ["momentum", "global norm", "averages of new values", "averages of old values"]
)
def test_the_number_of_kernel_calls_does_not_grow_with_the_leaves(name):
    build, shapes = BUILDS[name][0], [(3, 4), (4,), (2, 2)]
    few, many = (agree(build, n_leaves=n, shapes=shapes, calls=((0.5, 1.0),)) for n in (6, 24))
    assert few == many


def test_a_row_of_leaves_is_written_in_place():
    rng = np.random.default_rng(0)
    leaves = [pytensor.shared(rng.normal(size=(3,)), f"leaf{k}") for k in range(5)]
    f = pytensor.function([], [], updates=passed_down([0.5], leaves)[1], mode=PLAN)
    arrays = [leaf.get_value(borrow=True) for leaf in leaves]
    f()
    assert all(leaf.get_value(borrow=True) is array for leaf, array in zip(leaves, arrays, strict=True))
    (table,) = f.vm.tables.values()
    assert table.n_kernels == 4
    assert not table.finish.commits


def test_one_array_in_two_cells_is_updated_as_python_would():
    def build(x, leaves):
        return [], {leaves[0]: leaves[0] - x[0] * leaves[0], leaves[1]: leaves[1] - x[0] * leaves[0]}

    agree(build, n_leaves=2, shapes=[(3, 4)])


def test_an_error_leaves_every_leaf_as_it_was():
    rng = np.random.default_rng(1)
    leaves = [pytensor.shared(rng.normal(size=shape), f"leaf{k}") for k, shape in enumerate(SHAPES * 3)]
    x = pt.vector("x", dtype="float64")
    updates = adam(leaves, gradients(x, leaves), 0.1)
    checked = Assert("x must be positive")(x.sum(), pt.gt(x.sum(), 0))
    f = pytensor.function([x], checked, updates=updates, mode=PLAN)
    before = [cell.get_value() for cell in updates]
    with pytest.raises(AssertionError, match="x must be positive"):
        f(np.array([-1.0, -2.0]))
    for cell, value in zip(updates, before, strict=True):
        np.testing.assert_array_equal(cell.get_value(), value)
    f(np.array([1.0, 2.0]))
    assert all(
        (cell.get_value() != value).any() for cell, value in zip(updates, before, strict=True) if value.size
    )


def test_leaves_that_are_given_another_array_are_found_there():
    leaves = [pytensor.shared(np.full(3, float(k)), f"leaf{k}") for k in range(4)]
    f = pytensor.function([], [], updates={leaf: leaf + 1 for leaf in leaves}, mode=PLAN)
    f()
    leaves[2].set_value(np.full(3, 10.0))
    f()
    assert [leaf.get_value()[0] for leaf in leaves] == [2, 3, 11, 5]
    leaves[1].set_value(np.full(5, 20.0))
    f()
    assert leaves[1].get_value().tolist() == [21] * 5


def test_leaves_that_do_not_lie_flat_are_updated_beside_the_others():
    values = [np.ones((3, 4)), np.ones((4, 3)).T, np.ones((3, 8))[:, ::2], np.ones((3, 4))]
    leaves = [pytensor.shared(value, f"leaf{k}", borrow=True) for k, value in enumerate(values)]
    f = pytensor.function([], [], updates={leaf: leaf * 3 + 1 for leaf in leaves}, mode=PLAN)
    f()
    f()
    for leaf in leaves:
        np.testing.assert_array_equal(leaf.get_value(), np.full((3, 4), 13.0))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_leaves_are_shared_out_among_threads_bit_for_bit(threads):
    rng = np.random.default_rng(5)
    values = [rng.normal(size=n) for n in (300_001, 7, 40_000, 1, 131_072)]

    def after(n):
        before = get_threads()
        set_threads(n)
        try:
            leaves = [pytensor.shared(v, f"leaf{k}", shape=v.shape) for k, v in enumerate(values)]
            f = pytensor.function(
                [], [], updates=adam(leaves, [pt.tanh(leaf) for leaf in leaves], 0.1), mode=PLAN
            )
            f()
            f()
        finally:
            set_threads(before)
        (table,) = f.vm.tables.values()
        return [leaf.get_value() for leaf in leaves], table.n_kernels

    alone, n_alone = after(1)
    together, n_together = after(threads)
    assert n_alone == n_together <= 3
    for value, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(value, other)


def test_stacking_many_numbers_is_one_kernel_call():
    def n_kernels(n):
        x = pt.vector("x", dtype="float64")
        f = pytensor.function([x], pt.stack([x.sum() if k % 2 else x[k] for k in range(n)]), mode=PLAN)
        np.testing.assert_array_equal(f(np.arange(8.0)), [28.0 if k % 2 else k for k in range(n)])
        (table,) = f.vm.tables.values()
        return table.n_kernels

    assert n_kernels(3) == n_kernels(8)
