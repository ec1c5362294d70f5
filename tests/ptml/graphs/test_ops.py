"""Every family of ops there and back: the same computation, the same text, the same types."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import equal_computations
from pytensor.graph.op import Op
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.scalar.basic import Composite, ScalarOp, add, float64, identity, mul
from pytensor.scalar.loop import ScalarLoop
from pytensor.scan.utils import until
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.random.op import RandomVariable

import ptml
from ptml.graphs import graph_from_json, graph_to_json, registered_ops
from ptml.holds import Held

REFERENCE = Mode(linker="py", optimizer=None)

x = pt.matrix("x", dtype="float64")
y = pt.matrix("y", dtype="float64")
v = pt.vector("v", dtype="float64")
k = pt.lvector("k")
n = pt.lscalar("n")
rng = pt.random.type.random_generator_type("rng")
M = pt.tensor("M", shape=(3, 3), dtype="float64")


def _loop():
    carried, factor = float64("carried"), float64("factor")
    op = ScalarLoop(init=[carried], update=[mul(carried, factor)], constant=[factor])
    return Elemwise(op)(n, v, v)


def _composite():
    a, b = float64("a"), float64("b")
    return Elemwise(Composite([a, b], [mul(add(a, b), a), add(a, identity(b))]))(x, y)


def _nested():
    a, b = pt.matrix("a"), pt.matrix("b")
    inner = OpFromGraph([a], [pt.exp(a)], name="inner")
    outer = OpFromGraph([a, b], [inner(a) @ b, inner(b)], name="outer", inline=True)
    return outer(x, y)


def _own_gradient():
    a, g = pt.vector("a"), pt.vector("g")
    backwards = OpFromGraph([a, pt.vector(), g], [2 * g], on_unused_input="ignore")
    return pt.grad(OpFromGraph([a], [pt.round(a)], pullback=backwards)(v).sum(), v)


def _scan(**more):
    results = pytensor.scan(
        lambda row, before: pt.tanh(row + before), x, pt.zeros(4), return_updates=False, **more
    )
    return results


def _while():
    return pytensor.scan(
        lambda before: (before * 2, until(before > n)),
        outputs_info=pt.constant(1, dtype="int64"),
        n_steps=100,
        return_updates=False,
    )


#: What each graph gives, or a list of what several give.
GRAPHS = {
    "arithmetic": lambda: (x + y * 2 - x / 3) // 2 % 5 ** abs(y),
    "comparisons": lambda: pt.switch((x > y) & pt.neq(x, 1) | ~(x <= 0), x, -y),
    "functions": lambda: [pt.exp(x), pt.log1p(x), pt.sigmoid(x), pt.softplus(x), pt.erf(x), pt.gammaln(x)],
    "clip and casts": lambda: pt.cast(pt.clip(x, -1, 1), "int16") + pt.cast(y, "bool"),
    "composite": _composite,
    "scalar loop": _loop,
    "sums": lambda: [x.sum(), x.sum(axis=1), x.prod(axis=0), x.mean(), x.var(axis=0, keepdims=True)],
    "extremes": lambda: [x.max(axis=1), x.min(), pt.all(x > 0, axis=0), pt.any(x > 0), x.argmax(axis=0)],
    "norms": lambda: [x.norm(2), pt.logsumexp(x, axis=1)],
    "products without zeros": lambda: pt.math.ProdWithoutZeros(axis=0)(x),
    "a reduction of one's own": lambda: CAReduce(add, axis=(0,))(x),
    "shapes": lambda: [x.shape, x.shape[0], x.T, x.ravel(), x.reshape((2, -1)), x[None], x.size],
    "specified shapes": lambda: pt.specify_shape(x, (None, 4)),
    "joins": lambda: [pt.concatenate([x, y]), pt.stack([v, v]), *pt.split(v, [1, 2], n_splits=2)],
    "new arrays": lambda: [pt.zeros((n, 3)), pt.eye(n), pt.arange(n), pt.full_like(x, 2), pt.empty((n,))],
    "diagonals": lambda: [pt.diag(v), pt.diagonal(x), pt.fill_diagonal(x, 0.0), pt.tril(x)],
    "packed axes": lambda: [pt.join_dims(x), pt.split_dims(v, shape=(2, 2))],
    "repeats": lambda: [pt.repeat(x, k, axis=0), pt.tile(x, (2, 1)), pt.flip(v), pt.roll(v, 1)],
    "slices": lambda: [x[1:, ::-1], x[n], x[..., 0], x[n : n + 2, None]],
    "advanced indices": lambda: [x[k], x[k, k], x[x > 0], x[:, k], pt.nonzero(x)[0]],
    "written slices": lambda: [pt.set_subtensor(x[1:], 0.0), pt.inc_subtensor(x[:, n], v)],
    "written elements": lambda: [pt.set_subtensor(x[k, k], v), pt.inc_subtensor(x[k], 1.0)],
    "orders": lambda: [pt.sort(x, axis=1), pt.argsort(v), pt.cumsum(x, axis=0), pt.cumprod(v), pt.unique(v)],
    "searches": lambda: [pt.searchsorted(v, x[0]), *pt.unravel_index(k, (2, 3)), pt.bincount(k)],
    "matrix products": lambda: [x @ y, pt.outer(v, v), pt.tensordot(x, y, axes=1), v @ v],
    "batched products": lambda: pt.matmul(pt.tensor3("a"), pt.tensor3("b")),
    "einsum": lambda: pt.einsum("ij,kj->ik", x, y),
    "linear algebra": lambda: [
        pt.linalg.cholesky(M),
        pt.linalg.inv(M),
        pt.linalg.det(M),
        pt.linalg.solve(M, M),
        pt.linalg.solve_triangular(M, M),
        *pt.linalg.svd(M),
        *pt.linalg.eigh(M),
        *pt.linalg.qr(M),
        pt.linalg.expm(M),
        pt.linalg.pinv(M),
        pt.linalg.kron(M, M),
        pt.linalg.block_diag(M, M),
    ],
    "padding": lambda: pt.pad(x, ((1, 1), (0, 2)), mode="reflect"),
    "convolution": lambda: pt.signal.convolve1d(v, v),
    "softmax": lambda: [pt.special.softmax(x, axis=-1), pt.special.log_softmax(x, axis=None)],
    "gradient of softmax": lambda: pt.grad(pt.log(pt.special.softmax(x, axis=1)[:, 0]).sum(), x),
    "checks": lambda: [Assert("no")(x, v[0] > 0), CheckAndRaise(ValueError, "bad {0}")(x, n > 0)],
    "gradient marks": lambda: [
        pytensor.gradient.disconnected_grad(x),
        pytensor.gradient.zero_grad(x),
        pytensor.gradient.grad_clip(x, -1.0, np.inf),
        pytensor.gradient.grad_scale(x, 0.5),
    ],
    "branches": lambda: pytensor.ifelse(n > 0, x, y),
    "nested graphs": _nested,
    "a gradient of one's own": _own_gradient,
    "loop": _scan,
    "loop backwards": lambda: _scan(go_backwards=True, truncate_gradient=2, name="rows"),
    "loop until": _while,
    "gradient of a loop": lambda: pt.grad(_scan().sum(), x),
    "random variables": lambda: [
        *pt.random.normal(0, x, rng=rng, return_next_rng=True),
        *pt.random.categorical(pt.constant([0.5, 0.5]), size=(n,), rng=rng, return_next_rng=True),
        *pt.random.multivariate_normal(v, pt.diag(v), rng=rng, return_next_rng=True),
        *pt.random.permutation(v, rng=rng, return_next_rng=True),
    ],
    "no index": lambda: x[pt.as_tensor([0, 1]), :, None],
    "an input alone": lambda: x,
    "a constant alone": lambda: pt.constant([1.0, 2.0]),
}


def there_and_back(outputs, inputs=None):
    text = graph_to_json(outputs, inputs)
    graph = graph_from_json(text)
    assert graph_to_json(graph.outputs, graph.inputs) == text
    assert graph_to_json(outputs, inputs) == text
    return graph


def roots_of(outputs):
    found = dict.fromkeys(pytensor.graph.traversal.graph_inputs(outputs))
    free = [root for root in found if not isinstance(root, pytensor.graph.basic.Constant)]
    return sorted(free, key=lambda root: int(root.auto_name.removeprefix("auto_")))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_comes_back_as_the_same_computation(name):
    made = GRAPHS[name]()
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    inputs = roots_of(outputs)
    graph = there_and_back(outputs)
    assert [i.name for i in graph.inputs] == [i.name for i in inputs]
    assert [o.type for o in graph.outputs] == [o.type for o in outputs]
    assert equal_computations(list(graph.outputs), outputs, list(graph.inputs), inputs)


@pytest.mark.parametrize("name", ["arithmetic", "composite", "written slices", "loop", "gradient of softmax"])
def test_a_graph_that_came_back_gives_the_same_numbers(name):
    made = GRAPHS[name]()
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    inputs = roots_of(outputs)
    graph = there_and_back(outputs)
    random = np.random.default_rng(0)
    values = [random.normal(size=(3, 4)) if i.ndim == 2 else random.normal(size=3) for i in inputs[:2]]
    values += [np.array(1) if i.ndim == 0 else random.normal(size=3) for i in inputs[2:]]
    have = pytensor.function(list(graph.inputs), list(graph.outputs), mode=REFERENCE)(*values)
    want = pytensor.function(inputs, outputs, mode=REFERENCE)(*values)
    for mine, original in zip(have, want, strict=True):
        np.testing.assert_array_equal(mine, original)


def _subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_every_op_of_the_library_is_registered():
    for module in pkgutil.walk_packages(ptml.__path__, "ptml."):
        if ".backends" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    bases = {"Keyed", "Numbered", "Fused", "_Convolution", "_Entropy", "_FirstInput", "_OfRows", "_Check"}
    bases |= {"Pools", "PoolsBack", "_Attending", "_Pads", "_Resizes", "SequenceOp", "_OfLSTM"}
    known = {kind for kinds in registered_ops().values() for kind in kinds}
    own = {kind for kind in _subclasses(Op) if kind.__module__.startswith("ptml.")}
    own -= {kind for kind in own if ".backends" in kind.__module__ or kind.__name__ in bases}
    # What is held back is written with the program that it is compiled into.
    assert own - known - {Held} == set()


def test_every_scalar_op_that_pytensor_offers_is_registered():
    for module in (pytensor.scalar.basic, pytensor.scalar.math):
        for name, op in vars(module).items():
            if isinstance(op, ScalarOp):
                node = graph_from_json(graph_to_json(Elemwise(op)(*_arguments(op)))).outputs[0].owner
                assert node.op.scalar_op == op, name


def _arguments(op: ScalarOp) -> list:
    count = op.nin if op.nin > 0 else 2
    for dtype in ("float64", "int64", "bool", "complex128"):
        arguments = [pt.vector(f"a{i}", dtype=dtype) for i in range(count)]
        try:
            Elemwise(op)(*arguments)
        except (TypeError, NotImplementedError):
            continue
        return arguments
    raise AssertionError(f"{op} takes nothing")


def test_every_random_variable_of_pytensor_is_registered():
    known = {kind for kinds in registered_ops().values() for kind in kinds}
    module = pytensor.tensor.random.basic
    instances = [value for value in vars(module).values() if isinstance(value, RandomVariable)]
    assert {type(value) for value in instances} - known == set()
