"""The kernels of fused ops against closed forms in NumPy's float64, wherever their operands lie."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special

from ptml.backends.numba.plan import PLAN
from ptml.loss import CrossEntropy, KLDivergence
from ptml.loss.entropy import LabelEntropy, TargetEntropy
from ptml.ops.moments import Moments
from ptml.ops.softmax import LogSoftmax, LogSoftmaxGradient, Softmax, SoftmaxGradient

INF, NAN = np.inf, np.nan
CLOSE = {"float32": {"rtol": 3e-6, "atol": 1e-6}, "float64": {"rtol": 1e-13, "atol": 1e-14}}

#: Narrow rows in one block and in several, wide ones, one row, one column, none of either, further axes.
SHAPES = [(5, 3), (700, 10), (4, 600), (1, 7), (6, 1), (0, 4), (3, 4, 5)]


def run(outputs, given):
    """Compile outputs, run them on values by input, and give results and the nodes that the table ran."""
    f = pytensor.function(list(given), outputs, mode=PLAN)
    results = f(*given.values())
    (table,) = f.vm.tables.values()
    assert table.step is None
    return results, [type(node.op) for node, _ in table._nodes]


def variable(name, value, dtype=None):
    return pt.tensor(name, dtype=dtype or str(value.dtype), shape=(None,) * value.ndim)


def drawn(shape, dtype, seed=0, scale=3.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(dtype)


def softmax_reference(x, g=None):
    p = special.softmax(x.astype("float64"), axis=-1)
    return p if g is None else p * (g - (p * g).sum(-1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_and_log_softmax_with_their_gradients(dtype, shape):
    x, g = drawn(shape, dtype), drawn(shape, dtype, 1)
    X, G = variable("X", x), variable("G", g)
    p, (log_p, q) = Softmax()(X), LogSoftmax()(X)
    outputs = [p, log_p, q, pytensor.grad((p * G).sum(), X), pytensor.grad((log_p * G).sum(), X)]
    results, nodes = run(outputs, {X: x, G: g})
    wanted = softmax_reference(x)
    references = [
        wanted,
        np.log(wanted) if x.size else wanted,
        wanted,
        softmax_reference(x, g),
        g - wanted * g.sum(-1, keepdims=True),
    ]
    for result, reference in zip(results, references, strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, reference, **CLOSE[dtype])
    if x.size:
        assert {Softmax, LogSoftmax, SoftmaxGradient, LogSoftmaxGradient} <= set(nodes)


@pytest.mark.parametrize("width", [4, 600])
def test_a_softmax_of_infinite_logits_is_what_numpy_makes_of_it(width):
    x = np.zeros((4, width))
    x[0, 1:] = -INF
    x[1, :] = -INF
    x[2, 0] = INF
    x[3, 2] = NAN
    X = pt.matrix("X")
    (p, log_p), _ = run([Softmax()(X), LogSoftmax()(X)[0]], {X: x})
    np.testing.assert_array_equal(p[0], [1.0] + [0.0] * (width - 1))
    np.testing.assert_array_equal(log_p[0], [0.0] + [-INF] * (width - 1))
    assert np.isnan(p[1:]).all()
    assert np.isnan(log_p[1:]).all()


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "broadcast"])
def test_operands_may_lie_anyhow(layout):
    x, g = drawn((6, 8), "float64"), drawn((6, 8), "float64", 1)
    if layout == "transposed":
        x = np.asfortranarray(x)
    elif layout == "strided":
        x = np.repeat(x, 2, axis=1)[:, ::2]
    elif layout == "reversed":
        x = x[::-1, ::-1]
    else:
        g = np.broadcast_to(g[:1], x.shape)
    labels = np.arange(12)[::2] % 8
    X, G, Y = pt.matrix("X"), pt.matrix("G"), pt.lvector("Y")
    p, (losses, slopes), mean = Softmax()(X), LabelEntropy()(X, Y), Moments()(X, X.shape[0])[0]
    outputs = [p, pytensor.grad((p * G).sum(), X), losses, slopes, mean]
    results, _ = run(outputs, {X: x, G: g, Y: labels})
    wanted, onehot = softmax_reference(x), np.eye(8)[labels]
    references = [
        wanted,
        softmax_reference(x, g),
        -np.log((wanted * onehot).sum(1)),
        wanted - onehot,
        x.mean(0),
    ]
    for result, reference in zip(results, references, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_pytensors_own_softmax_is_the_kernel_too(axis):
    x = drawn((4, 5, 6), "float32")
    X = pt.tensor3("X", dtype="float32")
    outputs = [pt.special.softmax(X, axis=axis), pt.special.log_softmax(X, axis=axis)]
    results, nodes = run(outputs, {X: x})
    wanted = special.softmax(x.astype("float64"), axis=axis)
    np.testing.assert_allclose(results[0], wanted, **CLOSE["float32"])
    np.testing.assert_allclose(results[1], np.log(wanted), **CLOSE["float32"])
    assert {Softmax, LogSoftmax} <= set(nodes)
    both, _ = run([pt.special.softmax(X, axis=(1, 2))], {X: x})
    np.testing.assert_allclose(both[0], special.softmax(x.astype("float64"), axis=(1, 2)), rtol=3e-6)


def entropy_reference(z, weights):
    """Give losses and slopes of finite logits."""
    log_p = special.log_softmax(z.astype("float64"), axis=-1)
    losses = -(weights * np.where(weights == 0, 0, log_p)).sum(-1)
    return losses, np.exp(log_p) * weights.sum(-1, keepdims=True) - weights


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("labels_dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize(("ignore", "weighted"), [(None, False), (2, False), (-100, True)])
@pytest.mark.parametrize("shape", [(9, 5), (300, 11), (3, 600), (1, 3), (2, 3, 4)], ids=str)
def test_the_entropy_of_labels(dtype, labels_dtype, smoothing, ignore, weighted, shape):
    rng = np.random.default_rng(0)
    classes = shape[-1]
    z = drawn(shape, dtype)
    labels = rng.integers(0, min(classes, 200), shape[:-1]).astype(labels_dtype)
    if labels_dtype != "uint8" and ignore is not None:
        labels.flat[0] = ignore
        z[..., 0].flat[0] = NAN if shape[0] > 1 else 0.0
    kept = labels != ignore if ignore is not None else np.ones(labels.shape, bool)
    z = np.where(kept[..., None], z, np.where(np.arange(classes) == 0, NAN, -INF)).astype(dtype)
    w = rng.integers(0, 3, classes).astype(dtype)
    Z, Y, W = variable("Z", z), variable("Y", labels), variable("W", w)
    op = LabelEntropy(smoothing, ignore, weighted)
    outputs = op(Z, Y, *([W] if weighted else []))
    results, nodes = run(outputs, {Z: z, Y: labels, **({W: w} if weighted else {})})
    onehot = np.eye(classes)[np.where(kept, labels, 0)]
    weights = ((1 - smoothing) * onehot + smoothing / classes) * (w if weighted else 1.0)
    losses, slopes = entropy_reference(np.where(kept[..., None], z, 0), weights)
    np.testing.assert_allclose(results[0], np.where(kept, losses, 0), **CLOSE[dtype])
    np.testing.assert_allclose(results[1], np.where(kept[..., None], slopes, 0), **CLOSE[dtype])
    if weighted:
        np.testing.assert_array_equal(results[2], np.where(kept, (onehot * w).sum(-1), 0))
    assert nodes.count(LabelEntropy) == 1


@pytest.mark.parametrize("width", [3, 600])
@pytest.mark.parametrize("with_slopes", [True, False])
def test_the_entropy_of_infinite_logits_and_impossible_labels(width, with_slopes):
    z = np.zeros((6, width))
    z[0, 1:] = -INF  # sure and right
    z[1, 1:] = -INF  # sure and wrong
    z[2, 1] = INF  # the same from the other side
    z[3, :] = -INF  # nothing is possible
    labels = np.array([0, 1, 0, 0, width, -1])
    Z, Y = pt.matrix("Z"), pt.lvector("Y")
    outputs = LabelEntropy()(Z, Y)[: 2 if with_slopes else 1]
    results, _ = run(outputs, {Z: z, Y: labels})
    np.testing.assert_array_equal(results[0], [0, INF, INF, NAN, NAN, NAN])
    if with_slopes:
        pull = np.zeros((3, width))
        pull[1, :2] = 1, -1
        pull[2, :2] = -1, 1
        np.testing.assert_array_equal(results[1][:3], pull)
        assert np.isnan(results[1][3:]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_entropy_of_distributions(dtype, shape):
    z, q = drawn(shape, dtype), np.abs(drawn(shape, dtype, 1))
    q[q < 1] = 0
    Z, Q = variable("Z", z), variable("Q", q)
    losses, slopes = TargetEntropy()(Z, Q)
    results, nodes = run([losses, slopes], {Z: z, Q: q})
    for result, reference in zip(results, entropy_reference(z, q), strict=True):
        np.testing.assert_allclose(result, reference, **{**CLOSE[dtype], "atol": 1e-5})
    (alone,), _ = run([losses], {Z: z, Q: q})
    np.testing.assert_array_equal(alone, results[0])
    assert TargetEntropy in nodes or not z.size


def test_a_class_of_weight_zero_takes_no_part_in_an_entropy():
    z, q = np.array([[0.0, -INF], [-INF, -INF]]), np.array([[1.0, 0.0], [0.0, 0.0]])
    Z, Q = pt.matrix("Z"), pt.matrix("Q")
    (losses,), _ = run([TargetEntropy()(Z, Q)[0]], {Z: z, Q: q})
    np.testing.assert_array_equal(losses, [0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 3), (64, 128), (1, 4), (2, 3, 4, 5), (9, 1), (4, 0)], ids=str)
def test_moments(dtype, shape):
    x = (drawn(shape, dtype) + 50).astype(dtype)
    X = variable("X", x)
    (mean, variance), nodes = run(Moments()(X, pt.prod(X.shape[:-1])), {X: x})
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(
        mean, x.mean(axes, dtype="float64"), rtol=1e-6 if dtype == "float32" else 1e-14
    )
    np.testing.assert_allclose(
        variance, x.astype("float64").var(axes), rtol=1e-6 if dtype == "float32" else 1e-12, atol=1e-13
    )
    assert Moments in nodes or not x.size


def test_moments_lose_nothing_far_from_zero_and_keep_what_is_no_number():
    rng = np.random.default_rng(0)
    x = np.stack([1e6 + rng.normal(size=1000), np.full(1000, 7.1), np.zeros(1000), np.zeros(1000)], axis=1)
    x[0, 0] = 1e6 + 1e3  # an outlier, where differences are taken from
    x[0, 2] = INF
    x[5, 3] = NAN
    X = pt.matrix("X")
    (mean, variance), _ = run(Moments()(X, X.shape[0]), {X: x})
    np.testing.assert_allclose(variance[0], x[:, 0].var(), rtol=1e-9)
    assert variance[1] == 0
    assert mean[1] == 7.1
    assert mean[2] == INF
    assert np.isnan([variance[2], mean[3], variance[3]]).all()


def test_second_derivatives_are_right():
    rng = np.random.default_rng(0)
    x, g, labels = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([0, 2, 1, 1])
    X, G, Y = pt.matrix("X"), pt.matrix("G"), pt.lvector("Y")
    mean, variance = Moments()(X, X.shape[0])
    scalars = [
        (Softmax()(X) * G).sum(),
        (LogSoftmax()(X)[0] * G).sum(),
        (LabelEntropy(0.1)(X, Y)[0] * G[:, 0]).sum(),
        (TargetEntropy()(X, G**2)[0] * G[:, 0]).sum(),
        (mean * G[0] + variance * G[1]).sum(),
    ]
    firsts = [pytensor.grad(scalar, X) for scalar in scalars]
    seconds = [pytensor.grad((first * G).sum(), X) for first in firsts]
    f = pytensor.function([X, G, Y], [*firsts, *seconds], mode=PLAN, on_unused_input="ignore")
    n, step = len(scalars), 1e-6
    got = f(x, g, labels)[n:]
    wanted = np.zeros((n, *x.shape))
    for index in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[index] = step
        up, down = (f(x + sign * moved, g, labels)[:n] for sign in (1, -1))
        wanted[(slice(None), *index)] = [
            ((a - b) * g).sum() / (2 * step) for a, b in zip(up, down, strict=True)
        ]
    for result, reference in zip(got, wanted, strict=True):
        np.testing.assert_allclose(result, reference, atol=1e-8)


def test_what_a_kernel_does_not_take_is_computed_by_its_graph():
    x = drawn((3, 4), "float16")
    X = pt.matrix("X", dtype="float16")
    f = pytensor.function([X], Softmax()(X), mode=PLAN)
    assert not any(isinstance(node.op, Softmax) for node in f.maker.fgraph.apply_nodes)
    np.testing.assert_allclose(f(x), softmax_reference(x), atol=2e-3)
    mixed = pytensor.function([X], SoftmaxGradient()(X.astype("float32"), X.astype("float64")), mode=PLAN)
    assert not any(isinstance(node.op, SoftmaxGradient) for node in mixed.maker.fgraph.apply_nodes)
    assert mixed(x).dtype == "float64"


def test_shapes_that_do_not_go_together_raise_as_they_do_in_python():
    Z, Q, Y = pt.matrix("Z"), pt.matrix("Q"), pt.lvector("Y")
    targets = pytensor.function([Z, Q], TargetEntropy()(Z, Q), mode=PLAN)
    with pytest.raises(ValueError, match=r"[Bb]roadcast|match|shape"):
        targets(np.zeros((2, 3)), np.zeros((2, 4)))
    labels = pytensor.function([Z, Y], LabelEntropy()(Z, Y), mode=PLAN)
    with pytest.raises(ValueError, match=r"[Bb]roadcast|match|shape"):
        labels(np.zeros((2, 3)), np.zeros(4, "int64"))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (CrossEntropy(expect_logits=True), "labels"),
        (CrossEntropy(expect_logits=True, label_smoothing=0.1, ignore_label=0), "labels"),
        (CrossEntropy(expect_logits=True, class_weights=(1.0, 2.0, 0.5)), "labels"),
        (CrossEntropy(expect_logits=True, expect_onehot_labels=True), "onehot"),
        (KLDivergence(expect_logits=True), "onehot"),
    ],
    ids=str,
)
def test_a_loss_and_its_gradient_are_one_kernel_and_no_onehot(loss, target):
    Z = pt.matrix("Z", shape=(None, 3))
    T = pt.lvector("T") if target == "labels" else pt.matrix("T", shape=(None, 3))
    labels = np.array([0, 2, 1, 1])
    value = loss(Z, T)
    given = {Z: drawn((4, 3), "float64"), T: labels if target == "labels" else np.eye(3)[labels]}
    _, nodes = run([value, pytensor.grad(value, Z)], given)
    assert sum(issubclass(op, LabelEntropy | TargetEntropy) for op in nodes) == 1
