"""Scaled dot-product attention of tensors with an axis of heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.ops.attention.ops import Attention
from ptml.ops.attention.scores import Parts, sizes_of
from ptml.ops.attention.shapes import checked_sizes

__all__ = ["attention_weights", "scaled_dot_product_attention"]

NOT_FLOATING = (
    "{who} takes floating-point {what}; got {given}. Write {what}.astype('float32'), or cast where they come "
    "from."
)
MASK_DTYPE = (
    "{who} takes a mask of booleans, True where a query may attend, or one of floating-point numbers, which "
    "are added to the scores; got {dtype}. Write mask.astype('bool') for the former, or "
    "mask.astype({floating!r}) for the latter."
)
NAME = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    is_causal: bool = False,
    scale: Any = None,
    name: str = NAME,
) -> TensorVariable:
    r"""Attend to values by how well queries and keys agree.

    .. math:: \mathrm{softmax}\bigl(c\, q k^\top + m\bigr)\, v

    with the softmax over keys, of the heads of each example by themselves. Half precision is computed in
    single. On the numba backend, and where MLX's or PyTorch's own function is used, no memory for scores is
    needed, but for the gradient of a mask.

    Parameters
    ----------
    q : tensor, (..., heads, time_q, d)
    k : tensor, (..., kv_heads, time_k, d)
    v : tensor, (..., kv_heads, time_k, d_v)
        `heads` is a multiple of `kv_heads`: each head of keys and values serves so many neighbouring heads of
        queries, and is not repeated for them. The axes before broadcast.
    mask : tensor, optional
        Broadcasts to ``(..., heads, time_q, time_k)``. Booleans say where a query may attend to a key;
        floating-point numbers are added to the scores, so that ``-inf`` keeps a query from a key.
    is_causal : bool
        Whether the last query may attend to all keys, the one before it to all but the last, and so on: to
        what is not later than itself, if both end at the same time, as when further queries meet the keys of
        a whole sequence. (PyTorch lets both begin at the same time.) Default False.
    scale : float or scalar tensor, optional
        The factor :math:`c`, :math:`1 / \sqrt{d}` unless given.
    name : str
        What errors name.

    Returns
    -------
    tensor, (..., heads, time_q, d_v)
        In the dtype that `q`, `k` and `v` have together. A query that may attend to nothing gets exact zeros,
        and nothing flows back from it.

    Raises
    ------
    TypeError
        If `q`, `k` or `v` are not floating-point, or `mask` is neither that nor boolean.
    ValueError
        If sizes do not go together: at once where they are known, else when the graph runs.

    References
    ----------
    Vaswani et al., "Attention is all you need" (2017), equation 1. Ainslie et al., "GQA" (2023).

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.layers import scaled_dot_product_attention
    >>> q = k = np.eye(2)[None]
    >>> v = np.array([[[10.0, 0.0], [0.0, 20.0]]])
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).eval().round(3)
    array([[[10.   ,  0.   ],
            [ 3.302, 13.395]]])
    """
    inputs, given, scale = _prepared(name, q, k, v, mask, scale)
    result = Attention(is_causal, scale)(*inputs)[0].astype(given)
    result.name = name
    return result


def attention_weights(
    q: Any, k: Any, *, mask: Any = None, is_causal: bool = False, scale: Any = None
) -> TensorVariable:
    """Give the weights by which values are summed, to look at, or to compute with.

    They take memory for every pair of a query and a key, which attention itself does not.

    Parameters
    ----------
    q, k, mask, is_causal, scale
        As of :func:`scaled_dot_product_attention`.

    Returns
    -------
    tensor, (..., heads, time_q, time_k)
        Each row sums to 1, or to 0 where a query may attend to nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.ops.attention import attention_weights
    >>> attention_weights(np.zeros((1, 2, 4)), np.zeros((1, 2, 4)), is_causal=True).eval()
    array([[[1. , 0. ],
            [0.5, 0.5]]])
    """
    inputs, given, scale = _prepared("attention_weights", q, k, k, mask, scale)
    mask = inputs[3] if len(inputs) > 3 else None
    return Parts(inputs[0], inputs[1], mask, is_causal, scale).weights.astype(given)


def _prepared(
    who: str, q: Any, k: Any, v: Any, mask: Any, scale: Any
) -> tuple[list[TensorVariable], str, float | None]:
    """Give an op's inputs, of one dtype and as many axes, the dtype of the result, and the op's scale."""
    q, k, v = (pt.as_tensor(x) for x in (q, k, v))
    for what, x in (("queries", q), ("keys", k), ("values", v)):
        if not x.type.dtype.startswith("float"):
            raise TypeError(NOT_FLOATING.format(who=who, what=what, given=x.type))
    given = str(np.result_type(*(x.type.dtype for x in (q, k, v))))
    # Scores of half precision overflow.
    dtype = str(np.promote_types(given, "float32"))
    inputs = [x.astype(dtype) for x in (q, k, v)]
    if mask is not None:
        mask = pt.as_tensor(mask)
        if mask.type.dtype != "bool" and not mask.type.dtype.startswith("float"):
            raise TypeError(MASK_DTYPE.format(who=who, dtype=mask.type.dtype, floating=dtype))
        inputs.append(mask if mask.type.dtype == "bool" else mask.astype(dtype))
    inputs = _of_one_batch(checked_sizes(who, inputs))
    if scale is not None and not isinstance(scale, int | float | np.number):
        inputs[0], scale = inputs[0] * pt.as_tensor(scale).astype(dtype), 1.0
    return inputs, given, None if scale is None else float(scale)


def _of_one_batch(inputs: list[TensorVariable]) -> list[TensorVariable]:
    """Broadcast the axes before the heads, and give all inputs as many axes; a mask may stay as it is."""
    n_axes = max(x.type.ndim for x in inputs)
    inputs = [pt.shape_padleft(x, n_axes - x.type.ndim) for x in inputs]
    batch = []
    for axis in range(n_axes - 3):
        long = [x for x in inputs if x.type.shape[axis] != 1]
        known = [x for x in long if x.type.shape[axis] is not None]
        batch.append(sizes_of((known or long or inputs)[0])[axis])
    return [
        x
        if k == 3 or all(x.type.shape[axis] != 1 or size == 1 for axis, size in enumerate(batch))
        else pt.alloc(x, *batch, *sizes_of(x)[-3:])
        for k, x in enumerate(inputs)
    ]
