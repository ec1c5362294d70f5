"""The plan's kernels of attention against NumPy's float64, wherever operands lie, under any kind of mask."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.backends.numba.plan import PLAN
from ptml.ops.attention import Attention, AttentionGradient

CLOSE = {"float32": {"rtol": 2e-4, "atol": 2e-5}, "float64": {"rtol": 1e-10, "atol": 1e-11}}

#: Examples, heads of queries and of keys, queries, keys, features and features of values: several blocks, a
#: part of one, a single query or key, enough work for several threads.
SIZES = [
    (2, 4, 2, 70, 140, 6, 5),
    (3, 2, 2, 140, 70, 4, 8),
    (2, 2, 1, 1, 65, 3, 3),
    (24, 4, 4, 64, 64, 32, 32),
]


def reference(q, k, v, g, mask, is_causal):
    """The result of attention, and its gradients by queries, keys and values."""
    q, k, v, g = (x.astype("float64") for x in (q, k, v, g))
    group, factor = q.shape[-3] // k.shape[-3], 1 / np.sqrt(q.shape[-1])
    wide_k, wide_v = (np.repeat(x, group, axis=-3) for x in (k, v))
    scores = q @ wide_k.swapaxes(-1, -2) * factor
    n, m = scores.shape[-2:]
    if is_causal:
        scores = np.where(np.arange(m) <= np.arange(n)[:, None] + m - n, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    total = powers.sum(-1, keepdims=True)
    p = powers / np.where(total == 0, 1, total)
    back = g @ wide_v.swapaxes(-1, -2)
    slopes = p * (back - (back * p).sum(-1, keepdims=True)) * factor

    def summed(x):
        return x.reshape(*x.shape[:-3], -1, group, *x.shape[-2:]).sum(-3)

    of_k, of_v = summed(slopes.swapaxes(-1, -2) @ q), summed(p.swapaxes(-1, -2) @ g)
    return p @ wide_v, slopes @ wide_k, of_k, of_v


def masks(kind, rng, sizes):
    n_examples, heads, _, n, m, *_ = sizes
    match kind:
        case "bool":
            mask = rng.random((n_examples, 1, n, m)) < 0.6
            mask[:, :, 0] = False
            return mask
        case "number":
            return np.where(rng.random((1, heads, n, m)) < 0.6, rng.normal(size=(1, heads, n, m)), -np.inf)
        case "keys":
            return rng.random((n_examples, 1, 1, m)) < 0.6
        case "queries":
            return np.asfortranarray(rng.random((1, 1, n, 1)) < 0.6)
    return None


def compiled(values, mask, is_causal):
    """Compile attention with its gradients, and see to it that its kernels are used."""
    inputs = [
        pt.tensor(n, dtype=str(x.dtype), shape=(None,) * 4) for n, x in zip("qkvg", values, strict=True)
    ]
    given = list(values)
    if mask is not None:
        shape = tuple(1 if size == 1 else None for size in mask.shape)
        inputs.append(pt.tensor("mask", dtype=str(mask.dtype), shape=shape))
        given.append(mask)
    result, _ = Attention(is_causal)(*inputs[:3], *inputs[4:])
    gradients = pytensor.grad((result * inputs[3]).sum(), inputs[:3])
    f = pytensor.function(inputs, [result, *gradients], mode=PLAN)
    found = f(*given)
    (table,) = f.vm.tables.values()
    assert table.step is None
    assert {Attention, AttentionGradient} <= {type(node.op) for node, _ in table._nodes}
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [None, "bool", "number", "keys", "queries"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_kernels_of_attention_and_its_gradient(dtype, kind, is_causal):
    for sizes in SIZES:
        rng = np.random.default_rng(0)
        n_examples, heads, kv_heads, n, m, d, d_v = sizes
        shapes = [(heads, n, d), (kv_heads, m, d), (kv_heads, m, d_v), (heads, n, d_v)]
        values = [rng.normal(size=(n_examples, *shape)).astype(dtype) for shape in shapes]
        mask = masks(kind, rng, sizes)
        mask = mask.astype(dtype) if kind == "number" else mask
        found = compiled(values, mask, is_causal)
        for result, wanted in zip(found, reference(*values, mask, is_causal), strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(result, wanted, **CLOSE[dtype], err_msg=str(sizes))


@pytest.mark.parametrize("layout", ["heads inside", "together", "broadcast", "reversed"])
def test_operands_may_lie_anyhow(layout):
    rng = np.random.default_rng(0)
    apart = [rng.normal(size=(2, 9, 3, 4)) for _ in range(4)]
    values = [x.swapaxes(1, 2) for x in apart]
    if layout == "together":
        values[:3] = rng.normal(size=(2, 9, 3, 3, 4)).transpose(2, 0, 3, 1, 4)
    elif layout == "broadcast":
        values[1] = np.broadcast_to(values[1][:1], values[1].shape)
        values[3] = np.broadcast_to(values[3][:, :, :1, :1], values[3].shape)
    elif layout == "reversed":
        values = [x[:, ::-1, ::-1, ::-1] for x in values]
    for result, wanted in zip(compiled(values, None, True), reference(*values, None, True), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


def test_heads_that_lie_apart_give_results_that_do():
    x = pt.tensor("x", shape=(None, None, 12))
    heads = pt.split_dims(x, (3, 4), axis=-1).swapaxes(1, 2)
    joined = pt.join_dims(Attention()(heads, heads, heads)[0].swapaxes(1, 2), start_axis=-2, n_axes=2)
    f = pytensor.function([x], joined, mode=PLAN)
    f(np.random.default_rng(0).normal(size=(2, 5, 12)))
    (table,) = f.vm.tables.values()
    assert [type(node.op) for node, _ in table._nodes] == [Attention], "no copy of anything"


def test_memory_grows_with_the_length_not_with_its_square():
    taken = []
    for length in (512, 2048):
        q = pt.tensor("q", shape=(1, 1, length, 8), dtype="float32")
        result, _ = Attention(True)(q, q, q)
        f = pytensor.function([q], pytensor.grad(result.sum(), q), mode=PLAN)
        f(np.zeros((1, 1, length, 8), "float32"))
        (table,) = f.vm.tables.values()
        taken.append(table.planned_bytes)
    assert taken[1] < 5 * taken[0]
    assert taken[1] < 2048 * 2048


def test_nan_is_not_lost_and_what_is_masked_is_not_read():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(1, 1, 20, 4)) for _ in range(4)]
    values[1][0, 0, 3] = np.nan
    mask = np.ones((1, 1, 20, 20), bool)
    mask[..., 5, 3] = False
    result, of_q, *_ = compiled(values, mask, False)
    whole = np.isfinite(result).all(-1)[0, 0]
    assert whole.tolist() == [k == 5 for k in range(20)]
    assert np.isnan(of_q[0, 0, 4]).all()


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(24, 4, 64, 32)).astype("float32") for _ in range(4)]
    before, found = ptml.get_threads(), []
    try:
        for n in (1, 3):
            ptml.set_threads(n)
            found.append(compiled(values, None, True))
    finally:
        ptml.set_threads(before)
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)
