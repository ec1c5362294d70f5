"""Products of matrices, vectors and batches of them, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

RNG = np.random.default_rng(17)
CLOSE = {"float64": {"rtol": 1e-10}, "float32": {"rtol": 1e-4, "atol": 1e-5}}


def numbers(dtype, *shape):
    return RNG.normal(size=shape).astype(dtype)


LIES = {
    "rows": lambda a: a,
    "columns": np.asfortranarray,
    "reversed": lambda a: a[::-1, ::-1],
    "every other": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
    "one row": lambda a: np.broadcast_to(a[:1], a.shape),
}


@pytest.mark.parametrize("dtype", CLOSE)
def test_products_of_all_layouts(same_on_both, dtype):
    x, y = pt.matrix("x", dtype=dtype), pt.matrix("y", dtype=dtype)
    u, v = pt.vector("u", dtype=dtype), pt.vector("v", dtype=dtype)
    outputs = [x @ y, y.T @ x.T, x @ v, u @ x, pt.dot(v, v), pt.outer(u, v), (x @ y)[1:].sum(0), (x @ y) @ v]
    calls = []
    for left in LIES.values():
        for right in LIES.values():
            a, b = left(numbers(dtype, 4, 4)), right(numbers(dtype, 4, 4))
            calls.append([a, b, a[:, 0], b[0]])
    same_on_both([x, y, u, v], outputs, *calls, **CLOSE[dtype])


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 5, 1), (2, 1, 3)])
def test_thin_and_empty_products(same_on_both, m, k, n):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    same_on_both([x, y], [x @ y, y.T @ x.T + 1], [numbers("f8", m, k), numbers("f8", k, n)])


def test_batches(same_on_both):
    x, y = pt.tensor4("x", dtype="float64"), pt.tensor3("y", dtype="float64")
    m, v = pt.matrix("m", dtype="float64"), pt.vector("v", dtype="float64")
    wide = pt.tensor("wide", shape=(1, None, None), dtype="float64")
    outputs = [
        x @ y, y @ m, m @ y, y @ v, v @ y, y @ y.mT, y.mT @ y, wide @ y, pt.matvec(y, v), pt.vecdot(y, v),
        pt.tensordot(y, m, axes=[[2], [0]]), pt.einsum("bij,bkj->bik", y, y), pt.einsum("bij,jk->bik", y, m),
        pt.einsum("abij,bjk->abik", x, y), pt.grad((y @ y.mT).sum() + (x @ y).mean(), y),
    ]  # fmt: skip
    call = [numbers("f8", *s) for s in ((2, 3, 4, 4), (3, 4, 4), (4, 4), (4,), (1, 4, 4))]
    other = [call[0][::-1], call[1].transpose(0, 2, 1), call[2].T, call[3][::-1], call[4]]
    same_on_both([x, y, m, v, wide], outputs, call, other)


def test_attention(same_on_both):
    q, k, v = (
        pt.tensor4("q", dtype="float32"),
        pt.tensor4("k", dtype="float32"),
        pt.tensor4("v", dtype="float32"),
    )
    heads = [t.dimshuffle(0, 2, 1, 3) for t in (q, k, v)]
    scores = pt.special.softmax(heads[0] @ heads[1].mT / 2, axis=-1)
    mixed = (scores @ heads[2]).dimshuffle(0, 2, 1, 3)
    outputs = [mixed, *pt.grad((mixed**2).sum(), [q, k, v])]
    same_on_both([q, k, v], outputs, [numbers("f4", 2, 5, 3, 4) for _ in range(3)], rtol=1e-4, atol=1e-5)


def test_whole_numbers_and_two_types(same_on_both):
    k, x, y = pt.matrix("k", dtype="int32"), pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float64")
    whole = RNG.integers(-9, 9, (3, 3)).astype("i4")
    call = [whole, numbers("f4", 3, 3), numbers("f8", 3, 3)]
    # Products of whole numbers have no kernel.
    same_on_both([k, x, y], [k @ k, x @ y, k @ y], call, rtol=1e-6, kernels=False)
    same_on_both([x, y], [x @ y, y @ x], call[1:], rtol=1e-6)


def test_sizes_that_do_not_fit_raise(fails_alike):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    fails_alike([x, y], x @ y, [np.ones((2, 3)), np.ones((3, 2))], [np.ones((2, 3)), np.ones((2, 3))])
