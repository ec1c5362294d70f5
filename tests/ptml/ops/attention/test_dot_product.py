"""Scaled dot-product attention: what it computes on every backend, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.fused import Fused
from ptml.layers import scaled_dot_product_attention
from ptml.ops.attention import Attention, AttentionGradient, AttentionMaskGradient, attention_weights

INF = np.inf
EYE = np.eye(2)[None]
VALUES = np.array([[[10.0, 0.0], [0.0, 20.0]]])
RIGHT = [[[10.0, 0.0], [3.302384506733431, 13.395230986533138]]]


def weights(q, k, mask=None, is_causal=False, scale=None):
    """Attention's weights by the definition, each key repeated for the heads that it serves."""
    q, k = q.astype("float64"), np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
    scores = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    n, m = scores.shape[-2:]
    if is_causal:
        scores = np.where(np.arange(m) <= np.arange(n)[:, None] + m - n, scores, -INF)
    if mask is not None:
        scores = np.where(mask, scores, -INF) if mask.dtype == bool else scores + mask
    powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def attended(q, k, v, *args, **kwargs):
    return weights(q, k, *args, **kwargs) @ np.repeat(v, q.shape[-3] // k.shape[-3], axis=-3)


def drawn(*shapes, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def declared(values, shapes=None):
    return [
        pt.tensor(f"x{n}", dtype=str(value.dtype), shape=value.shape if shapes is None else shapes[n])
        for n, value in enumerate(values)
    ]


def test_a_mask_is_told_by_its_dtype_and_a_row_with_nothing_to_attend_to_is_zero(backend):
    dtype = "float32" if backend == "mlx" else "float64"
    allowed = np.array([[True, False], [True, True]])
    additive = np.array([[-INF, -INF], [0.0, 0.0]])
    inputs = [value.astype(dtype) for value in (EYE, EYE, VALUES)]
    q, k, v = declared(inputs)
    by_bool, by_number, of_none = (
        scaled_dot_product_attention(q, k, v, mask=mask)
        for mask in (allowed, np.where(allowed, 0.0, -INF), additive)
    )
    gradients = pytensor.grad(of_none[0, 1].sum(), [q, k, v])
    of_rows = pytensor.grad(of_none.sum(), [q, k, v])
    f = ptml.function([q, k, v], [by_bool, by_number, of_none, *gradients, *of_rows], backend=backend)
    first, second, third, *rest = map(np.asarray, f(*inputs))
    close = {"rtol": 1e-6} if dtype == "float32" else {"rtol": 1e-14}
    np.testing.assert_allclose(first, RIGHT, **close)
    np.testing.assert_allclose(second, RIGHT, **close)
    np.testing.assert_array_equal(third[0, 0], [0.0, 0.0])
    np.testing.assert_allclose(third[0, 1], RIGHT[0][1], **close)
    for gradient, whole in zip(rest[:3], rest[3:], strict=True):
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, whole, rtol=1e-6, err_msg="the empty row adds nothing")
    np.testing.assert_allclose(rest[2][0, :, 0], weights(EYE, EYE)[0, 1], rtol=1e-6)


def test_grouped_heads_masks_and_lengths_on_every_backend(backend):
    dtype = "float32" if backend == "mlx" else "float64"
    q, k, v, g = drawn((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 4), (2, 4, 3, 4), dtype=dtype)
    rng = np.random.default_rng(1)
    by_number = rng.normal(size=(3, 6)).astype(dtype)
    kinds = [(None, True), (rng.random((2, 1, 1, 6)) < 0.6, False), (by_number, True)]
    variables = declared([q, k, v], [(None, 4, None, 5), (None, 2, None, 5), (None, 2, None, 4)])
    outputs = []
    for mask, is_causal in kinds:
        result = scaled_dot_product_attention(*variables, mask=mask, is_causal=is_causal, scale=0.7)
        outputs += [result, *pytensor.grad((result * pt.constant(g)).sum(), variables)]
    found = [np.asarray(x) for x in ptml.function(variables, outputs, backend=backend)(q, k, v)]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-13}
    for n, (mask, is_causal) in enumerate(kinds):
        result, of_q, *others = found[4 * n : 4 * n + 4]
        options = {"mask": mask, "is_causal": is_causal, "scale": 0.7}
        np.testing.assert_allclose(result, attended(q, k, v, **options), **close)
        p, wide = weights(q, k, **options), np.repeat(v, 2, axis=1)
        back = g @ wide.swapaxes(-1, -2)
        slopes = 0.7 * p * (back - (back * p).sum(-1, keepdims=True))
        np.testing.assert_allclose(of_q, slopes @ np.repeat(k, 2, axis=1), **close)
        for gradient, each in zip(others, (slopes.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g), strict=True):
            np.testing.assert_allclose(gradient, each.reshape(2, 2, 2, *each.shape[2:]).sum(2), **close)


def test_float64_is_float64_and_half_precision_does_not_overflow(backend):
    outputs, inputs, references = [], [], []
    if backend != "mlx":
        q, k, v = drawn((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4))
        inputs += [q, k, v]
        references.append(attended(q, k, v))
    half = [np.full((1, 1, 4), 200), np.array([[[200.0] * 4, [199.0] * 4]]), np.array([[[1.0], [0.0]]])]
    inputs += [value.astype("float16") for value in half]
    references.append(np.ones((1, 1, 1)))
    variables = declared(inputs)
    outputs = [scaled_dot_product_attention(*variables[n : n + 3]) for n in range(0, len(variables), 3)]
    found = ptml.function(variables, outputs, backend=backend)(*inputs)
    for result, reference in zip(found, references, strict=True):
        result = np.asarray(result)
        assert np.abs(result - reference).max() < (1e-12 if result.dtype == "float64" else 1e-3)
    assert np.asarray(found[-1]).dtype == "float16"


def test_the_last_query_sees_every_key_and_earlier_ones_fewer():
    q, k, v = drawn((1, 4, 3), (1, 2, 3), (1, 2, 3))
    result = scaled_dot_product_attention(q, k, v, is_causal=True).eval()
    np.testing.assert_array_equal(result[0, :2], np.zeros((2, 3)))
    np.testing.assert_allclose(result[0, 2:], attended(q[:, 2:], k, v, is_causal=True)[0])
    one = scaled_dot_product_attention(q[:, -1:], k, v, is_causal=True).eval()
    np.testing.assert_allclose(one, result[:, -1:])


def test_axes_before_the_heads_broadcast():
    q, k, v = drawn((3, 1, 2, 4, 3), (5, 2, 6, 3), (1, 2, 6, 3))
    wanted = attended(np.broadcast_to(q, (3, 5, 2, 4, 3)), np.broadcast_to(k, (3, 5, 2, 6, 3)), v)
    variables = declared([q, k, v])
    result = scaled_dot_product_attention(*variables)
    assert result.type.shape == (3, 5, 2, 4, 3)
    found = ptml.function(variables, [result, *pytensor.grad(result.sum(), variables)])(q, k, v)
    np.testing.assert_allclose(found[0], wanted)
    assert [gradient.shape for gradient in found[1:]] == [q.shape, k.shape, v.shape]


def test_the_dtype_and_the_scale_may_be_anything_sensible():
    q, k, v = drawn((1, 2, 3), (1, 4, 3), (1, 4, 3))
    mixed = scaled_dot_product_attention(q.astype("float32"), k, v)
    assert mixed.type.dtype == "float64"
    narrow = scaled_dot_product_attention(
        *(x.astype("float32") for x in (q, k, v)), mask=np.zeros((2, 4)), scale=pt.constant(0.3)
    )
    assert narrow.type.dtype == "float32"
    np.testing.assert_allclose(narrow.eval(), attended(q, k, v, scale=0.3), rtol=1e-5)


@pytest.mark.parametrize("kind", [None, "bool", "number"])
def test_second_derivatives_are_those_of_first_ones(kind):
    q, k, v, g = drawn((1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 3), (1, 2, 3, 3))
    mask = {None: None, "bool": np.array([[1, 1, 0, 1]] * 3, bool), "number": drawn((3, 4))[0]}[kind]
    variables = declared([q, k, v])
    result = scaled_dot_product_attention(*variables, mask=mask, is_causal=True)
    first = pytensor.grad((pt.tanh(result) * g).sum(), variables)
    directions = drawn(*(x.shape for x in (q, k, v)), seed=2)
    along = sum((x * d).sum() for x, d in zip(first, directions, strict=True))
    f = ptml.function(variables, [along, *pytensor.grad(along, variables)])
    _, *second = f(q, k, v)
    for n, (x, slope) in enumerate(zip((q, k, v), second, strict=True)):
        step = np.zeros_like(x)
        step.flat[1] = 1e-5
        near = [[q, k, v], [q, k, v]]
        near[0][n], near[1][n] = x - step, x + step
        low, high = (f(*values)[0] for values in near)
        np.testing.assert_allclose(slope.flat[1], (high - low) / 2e-5, rtol=1e-6, atol=1e-8)


def test_an_additive_mask_has_a_gradient():
    q, k, v, mask = drawn((2, 3, 2), (2, 4, 2), (2, 4, 2), (1, 3, 4))
    Q, K, V, M = declared([q, k, v, mask])
    result = scaled_dot_product_attention(Q, K, V, mask=M, is_causal=True)
    f = ptml.function([Q, K, V, M], [result.sum(), pytensor.grad(result.sum(), M)])
    _, gradient = f(q, k, v, mask)
    assert gradient.shape == mask.shape
    for place in ((0, 0, 0), (0, 1, 2), (0, 2, 3)):
        step = np.zeros_like(mask)
        step[place] = 1e-5
        low, high = (f(q, k, v, mask + sign * step)[0] for sign in (-1, 1))
        np.testing.assert_allclose(gradient[place], (high - low) / 2e-5, rtol=1e-5, atol=1e-9)


def test_it_is_one_op_with_one_gradient():
    q, k, v = declared(drawn((2, 3, 4), (2, 3, 4), (2, 3, 4)))
    result = scaled_dot_product_attention(q, k, v)
    assert isinstance(result.owner.op, Attention)
    gradients = pytensor.grad(result.sum(), [q, k, v])
    assert {type(gradient.owner.op) for gradient in gradients} == {AttentionGradient}
    assert Attention(True) == Attention(True, None) != Attention(True, 1.0)


@pytest.mark.parametrize("mask", [None, "bool", "float64"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_what_the_ops_know_of_their_graphs_is_so(mask, heads):
    shapes = [(3, heads[0], None, 4), (3, heads[1], 6, 4), (3, heads[1], 6, 5)]
    inputs = [pt.tensor(name, shape=shape) for name, shape in zip("qkv", shapes, strict=True)]
    inputs += [] if mask is None else [pt.tensor("mask", shape=(1, 1, None, 6), dtype=mask)]
    attention = Attention(True)(*inputs)[0].owner
    g = attention.outputs[0].type("g")
    gradient = AttentionGradient(True)(*inputs, g, *attention.outputs)[0].owner
    nodes = [attention, gradient]
    if mask == "float64":
        nodes.append(AttentionMaskGradient(True)(*inputs, g).owner)
    for node in nodes:
        built = node.op.build(*node.inputs)
        for output, wanted in zip(node.outputs, built, strict=True):
            assert output.type.dtype == wanted.type.dtype
            assert all(n == m or m is None for n, m in zip(output.type.shape, wanted.type.shape, strict=True))
        wider = Fused.connection_pattern(node.op, node)
        for row, others in zip(node.op.connection_pattern(node), wider, strict=True):
            assert all(not own or there for own, there in zip(row, others, strict=True))


def test_weights_sum_to_one_or_to_nothing():
    q, k = drawn((2, 3, 4), (1, 2, 4))
    result = attention_weights(q, k, is_causal=True).eval()
    np.testing.assert_allclose(result, weights(q, k, is_causal=True))
    np.testing.assert_allclose(result.sum(-1), [[0.0, 1.0, 1.0]] * 2)


SHAPES = {
    "q": ((3, 4), (2, 5, 4), (2, 5, 4), None),
    "one axis": ((4,), (2, 5, 4), (2, 5, 4), None),
    "features": ((2, 3, 4), (2, 5, 3), (2, 5, 4), None),
    "length": ((2, 3, 4), (2, 5, 4), (2, 6, 4), None),
    "heads of values": ((2, 3, 4), (2, 5, 4), (1, 5, 4), None),
    "heads": ((4, 3, 4), (3, 5, 4), (3, 5, 4), None),
    "batch": ((7, 2, 3, 4), (6, 2, 5, 4), (6, 2, 5, 4), None),
    "mask": ((2, 3, 4), (2, 5, 4), (2, 5, 4), (3, 6)),
    "swapped": ((2, 3, 4), (2, 5, 4), (2, 5, 4), (5, 3)),
    "mask's axes": ((2, 3, 4), (2, 5, 4), (2, 5, 4), (1, 2, 3, 5)),
    "mask's batch": ((7, 2, 3, 4), (7, 2, 5, 4), (7, 2, 5, 4), (6, 1, 3, 5)),
}
SAYS = {
    "q": r"takes queries of at least 3 axes, .*; got shape \(3, 4\)\. Write queries\[\.\.\., None, :, :\]",
    "one axis": r"takes queries of at least 3 axes, .*; got shape \(4,\)\.$",
    "features": r"queries and keys must have the same features, axis -1; got queries of shape",
    "length": r"keys and values must have the same length, axis -2",
    "heads of values": r"keys and values must have the same heads, axis -3",
    "heads": r"axis -3, must be a multiple of those of keys and values; got 4 and 3",
    "batch": r"queries and keys must have the same size of the batch, axis -4",
    "mask": r"mask must broadcast to .* = \(2, 3, 5\); got shape \(3, 6\): axis -1 is 6, where 5 or 1",
    "swapped": r"axis -2 is 5, .*\. Its last axes are \(time_k, time_q\): write mask\.swapaxes",
    "mask's axes": r"the mask has more axes than the scores, \(2, 3, 5\); got shape \(1, 2, 3, 5\)",
    "mask's batch": r"axis -4 is 6, where 7 or 1 is wanted",
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_go_together_are_refused_at_once(case):
    *operands, mask = SHAPES[case]
    inputs = [pt.tensor(name, shape=shape) for name, shape in zip("qkv", operands, strict=True)]
    mask = None if mask is None else pt.tensor("mask", shape=mask, dtype="bool")
    with pytest.raises(ValueError, match=r"^attend"):
        scaled_dot_product_attention(*inputs, mask=mask, name="attend")
    with pytest.raises(ValueError, match=SAYS[case]):
        scaled_dot_product_attention(*inputs, mask=mask)


@pytest.mark.parametrize("case", ["features", "length", "heads of values", "mask", "swapped"])
def test_what_only_the_running_graph_knows_is_refused_there(case):
    shapes = [shape for shape in SHAPES[case] if shape is not None]
    values = [np.zeros(shape) for shape in shapes]
    inputs = declared(values, [(None,) * len(shape) for shape in shapes])
    mask = inputs[3] if len(inputs) > 3 else None
    f = ptml.function(inputs, scaled_dot_product_attention(*inputs[:3], mask=mask, name="attend"))
    with pytest.raises(ValueError, match=r"attend takes .*, which differ along axis -[123]"):
        f(*values)


def test_dtypes_that_mean_nothing_are_refused():
    q = np.zeros((1, 2, 4))
    with pytest.raises(
        TypeError, match=r"takes a mask of booleans.*got int64\. Write mask\.astype\('bool'\)"
    ):
        scaled_dot_product_attention(q, q, q, mask=np.ones((2, 2), "int64"))
    with pytest.raises(TypeError, match=r"takes floating-point keys; got .*int"):
        scaled_dot_product_attention(q, q.astype("int64"), q)
