"""Attention over several heads: of a sequence to itself, or to another."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_floating, check_same_size
from ptml.declare import sublayer
from ptml.decoding import Decoding, decoding
from ptml.initializers import Initializer
from ptml.layer import Layer
from ptml.layers.dropout import Dropout, a_probability
from ptml.layers.feature_norm import RMSNorm
from ptml.layers.linear import Linear
from ptml.layers.relative_positions import RotaryPositions, alibi_bias, alibi_slopes
from ptml.layout import check_layout
from ptml.marks import advance, in_training
from ptml.ops.attention import attention_weights, scaled_dot_product_attention
from ptml.validate import an_initializer, described, flag, positive_int

__all__ = ["CausalSelfAttention", "MultiheadAttention", "check_heads", "check_sequence", "rotary_or_none"]

UNEVEN = "{who}: {what} must be a multiple of n_head; got {what}={width} and n_head={n_head}."
UNEVEN_GROUPS = (
    "{who}: n_head must be a multiple of n_kv_head; got n_head={n_head} and n_kv_head={n_kv_head}."
)
ODD_HEADS = (
    "{who}: rotary positions turn features in pairs, and each head has {head_dim}: choose {what} and n_head "
    "so that {what} / n_head is even."
)
NOT_ROTARY = "{who}: rotary must be a RotaryPositions layer or None; got {value!r}."
WRONG_ROTARY_AXIS = (
    "{who}: rotary must have axis=-2, as heads come before the positions here; got axis={axis}."
)
FUSED_KV = (
    "{who}: fused_qkv=True projects queries, keys and values by one weight, from one input of "
    "n_embd={n_embd}; got kv_dim={kv_dim}. Leave one of the two out."
)
FUSED_CROSS = "{who} has fused_qkv=True, and takes one input: keys and values cannot come from a second one."
CAUSAL_CROSS = (
    "{who} has is_causal=True, which orders the positions of one sequence: keys and values cannot come from "
    "a second input."
)
PLACED_CROSS = (
    "{who} has {what}, which compares positions of one sequence: keys and values cannot come from a second "
    "input."
)
CROSS_ONLY = (
    "{who} has kv_dim={kv_dim}, and takes keys and values from a second input of that width: call it on "
    "(x, kv)."
)
WRONG_RANK = "{who} takes {wants}; got {ndim} axes: {shape}."
NOT_CAUSAL = (
    "{who} attends to later positions, which a decoder has not seen yet: write is_causal=True. What is known "
    "from the start (an encoder's output) goes to the decoder as an input of its own."
)
MASKED = "{who} takes no mask while decoding: all that the caches hold may be attended to."
OTHER_BATCH = "{who} decodes a batch of {batch}; got {shape}: axis 0 is {given}."


def rotary_or_none(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is a `RotaryPositions` layer that turns what has its heads in front, or None."""
    if value is None:
        return
    if not isinstance(value, RotaryPositions):
        raise TypeError(NOT_ROTARY.format(who=described(module), value=value))
    if value.axis != -2:
        raise ValueError(WRONG_ROTARY_AXIS.format(who=described(module), axis=value.axis))


def check_heads(layer: Any, what: str) -> None:
    """Check that a width is divided evenly into heads, and heads into groups.

    Parameters
    ----------
    layer : Layer
        It has `n_head`, `n_kv_head`, `rotary` and the width.
    what : str
        The name of the width: ``"n_embd"`` or ``"d_model"``.

    Raises
    ------
    ValueError
    """
    who, width, n_head = described(layer), getattr(layer, what), layer.n_head
    if width % n_head:
        raise ValueError(UNEVEN.format(who=who, what=what, width=width, n_head=n_head))
    if layer.n_kv_head is not None and n_head % layer.n_kv_head:
        raise ValueError(UNEVEN_GROUPS.format(who=who, n_head=n_head, n_kv_head=layer.n_kv_head))
    if layer.rotary is not None and (width // n_head) % 2:
        raise ValueError(ODD_HEADS.format(who=who, what=what, head_dim=width // n_head))


def check_sequence(layer: Any, X: TensorVariable, width: int, *, dtype: str, called: str) -> TensorVariable:
    """Check that a layer's input is a batch of sequences of vectors.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input.
    width : int
        The size of its last axis.
    dtype : str
        The dtype of the parameters.
    called : str
        What the errors call the width, such as ``"n_embd"``.

    Returns
    -------
    tensor
        As :func:`ptml.checks.check_axis` gives it.
    """
    wants = f"(batch, time, {called} = {width})"
    check_floating(layer, X, dtype=dtype)
    if X.type.ndim != 3:
        raise ValueError(
            WRONG_RANK.format(who=described(layer), wants=wants, ndim=X.type.ndim, shape=X.type.shape)
        )
    check_layout(layer, X, "NTC")
    return check_axis(layer, X, width, wants=wants)


class MultiheadAttention(Layer):
    r"""Attend from each position to others, by several heads, for x of shape ``(batch, time, n_embd)``.

    Queries, keys and values are linear in the input; each head attends by its share of the features, by
    :func:`scaled_dot_product_attention`; and what the heads found is combined linearly.

    ``attention(x)`` attends to x itself, ``attention(x, kv)`` to another sequence, of shape ``(batch,
    kv_time, kv_dim)``. A mask is given by keyword: ``attention(x, mask=mask)``.

    Parameters
    ----------
    name : str, optional
    n_embd : int
        The size of the last axis of input and output.
    n_head : int
        The number of heads, which divides `n_embd`.
    n_kv_head : int, optional
        The number of heads of keys and values, which divides `n_head`: each serves so many neighbouring heads
        of queries. `n_head` unless given; 1 is multi-query attention.
    kv_dim : int, optional
        The size of the last axis of a second input; `n_embd` unless given.
    fused_qkv : bool
        Whether one weight projects queries, keys and values together, in this order; False unless given.
    bias : bool
        Whether the projections have biases; True unless given.
    is_causal : bool
        Whether no position attends to a later one; False unless given.
    out_proj_initializer : Initializer, optional
        Of the weight of the last projection; that of `Linear` unless given.
    dropout : float
        The probability, in training, that a weight of attention is dropped; 0 unless given. Memory for all
        weights is then needed.
    rotary : RotaryPositions, optional
        What turns queries and keys by their positions.
    alibi : bool
        Whether a score is lowered by the distance of the positions, as :func:`alibi_bias` says; False unless
        given.
    qk_norm : bool
        Whether queries and keys are normalized, head by head, by an `RMSNorm`; False unless given.

    Raises
    ------
    ValueError
        If the heads do not divide the width; when called, or by the running graph where shapes are not known
        before, if an input has another number of axes or width, or the inputs and the mask do not go
        together.
    TypeError
        When called, if an input holds integers or is wider than the parameters, or the mask holds integers.

    Notes
    -----
    A mask broadcasts to ``(batch, n_head, time, kv_time)``. One of booleans says where a position may attend;
    one of floating-point numbers is added to the scores. For ``valid`` of shape ``(batch, kv_time)`` write
    ``valid[:, None, None, :]``. A position that may attend to nothing finds zeros.

    References
    ----------
    Vaswani and others, "Attention is all you need" (2017), section 3.2.2. Shazeer, "Fast transformer
    decoding: one write-head is all you need" (2019); Ainslie and others, "GQA: training generalized
    multi-query transformer models from multi-head checkpoints" (2023). `qk_norm`: Henry and others,
    "Query-key normalization for transformers" (2020), with the norm of Dehghani and others (2023).

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input, MultiheadAttention
    >>> attention = MultiheadAttention("attn", n_embd=64, n_head=8, n_kv_head=2)
    >>> attention(Input("x", (None, None, 64))).type.shape
    (None, None, 64)
    >>> [f"{handle.slot.address} {handle.type.shape}" for handle in ptml.slots(attention)][::2]
    ['attn/query/W (64, 64)', 'attn/key/W (64, 16)', 'attn/value/W (64, 16)', 'attn/out/W (64, 64)']

    To attend to another sequence:

    >>> cross = MultiheadAttention("cross", n_embd=64, n_head=8, kv_dim=32)
    >>> cross(Input("x", (None, 10, 64)), Input("memory", (None, 20, 32))).type.shape
    (None, 10, 64)
    """

    n_embd: int = attrs.field(validator=positive_int)
    n_head: int = attrs.field(validator=positive_int)
    n_kv_head: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))
    kv_dim: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))
    fused_qkv: bool = attrs.field(default=False, validator=flag)
    bias: bool = attrs.field(default=True, validator=flag)
    is_causal: bool = attrs.field(default=False, validator=flag)
    out_proj_initializer: Initializer | None = attrs.field(
        default=None, validator=attrs.validators.optional(an_initializer)
    )
    dropout: float = attrs.field(default=0.0, validator=a_probability)
    rotary: RotaryPositions | None = attrs.field(default=None, validator=rotary_or_none)
    alibi: bool = attrs.field(default=False, validator=flag)
    qk_norm: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        check_heads(self, "n_embd")
        if self.fused_qkv and self.kv_dim not in (None, self.n_embd):
            raise ValueError(FUSED_KV.format(who=described(self), n_embd=self.n_embd, kv_dim=self.kv_dim))

    @property
    def head_dim(self) -> int:
        """The number of features of a head."""
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    def _from(self, what: str, n_in: int, n_out: int) -> Linear:
        return Linear(f"{self.name}/{what}", n_in=n_in, n_out=n_out, bias=self.bias)

    @sublayer
    def qkv(self) -> Any:
        """The projection to queries, keys and values, in this order; None where there are three."""
        width = self.n_embd + 2 * self.kv_heads * self.head_dim
        return self._from("qkv", self.n_embd, width) if self.fused_qkv else None

    @sublayer
    def query(self) -> Any:
        """The projection to queries; None where one weight projects all."""
        return None if self.fused_qkv else self._from("query", self.n_embd, self.n_embd)

    @sublayer
    def key(self) -> Any:
        """The projection to keys; None where one weight projects all."""
        width = self.kv_heads * self.head_dim
        return None if self.fused_qkv else self._from("key", self.kv_dim or self.n_embd, width)

    @sublayer
    def value(self) -> Any:
        """The projection to values; None where one weight projects all."""
        width = self.kv_heads * self.head_dim
        return None if self.fused_qkv else self._from("value", self.kv_dim or self.n_embd, width)

    @sublayer
    def query_norm(self) -> Any:
        """The norm of queries, or None without one."""
        return RMSNorm(f"{self.name}/query_norm", n_in=self.head_dim) if self.qk_norm else None

    @sublayer
    def key_norm(self) -> Any:
        """The norm of keys, or None without one."""
        return RMSNorm(f"{self.name}/key_norm", n_in=self.head_dim) if self.qk_norm else None

    @sublayer
    def drop(self) -> Any:
        """What drops weights of attention, or None without it."""
        return Dropout(f"{self.name}/dropout", p=self.dropout) if self.dropout > 0 else None

    @sublayer
    def out(self) -> Any:
        """The projection of what the heads found."""
        given = self.out_proj_initializer
        options = {} if given is None else {"weight_initializer": given}
        return Linear(f"{self.name}/out", n_in=self.n_embd, n_out=self.n_embd, bias=self.bias, **options)

    def build(self, x: TensorVariable, kv: Any = None, mask: Any = None) -> TensorVariable:
        dtype = self.out.W.type.dtype
        x = check_sequence(self, x, self.n_embd, dtype=dtype, called="n_embd")
        if kv is None:
            if self.kv_dim not in (None, self.n_embd):
                raise ValueError(CROSS_ONLY.format(who=described(self), kv_dim=self.kv_dim))
        else:
            kv = self._second(x, kv, dtype)
        q, k, v = self._projected(x, x if kv is None else kv)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        now = decoding.get()
        if now is not None and kv is None:
            Y, moves = self._decoded(now, q, k, v, mask)
            return advance(self._combined(Y, x), moves)
        if self.alibi:
            mask = _biased(alibi_bias(self.n_head, _size(q, 2), _size(k, 2), dtype=q.type.dtype), mask)
        return self._combined(self._attended(q, k, v, mask), x)

    def _second(self, x: TensorVariable, kv: TensorVariable, dtype: str) -> TensorVariable:
        """Check the input that keys and values come from."""
        who = described(self)
        if self.fused_qkv:
            raise ValueError(FUSED_CROSS.format(who=who))
        if self.is_causal:
            raise ValueError(CAUSAL_CROSS.format(who=who))
        for what, placed in (("rotary positions", self.rotary is not None), ("alibi=True", self.alibi)):
            if placed:
                raise ValueError(PLACED_CROSS.format(who=who, what=what))
        kv = check_sequence(self, kv, self.kv_dim or self.n_embd, dtype=dtype, called="kv_dim")
        return check_same_size(self, kv, x, axis=0, wants="keys and values of the batch that x is of")

    def _projected(self, x: TensorVariable, kv: TensorVariable) -> list[TensorVariable]:
        """Give queries, keys and values, ``(batch, heads, time, head_dim)``."""
        if self.fused_qkv:
            all_three = self.qkv(x)
            ends = np.cumsum([0, self.n_embd, *[self.kv_heads * self.head_dim] * 2])
            parts = [all_three[..., a:b] for a, b in itertools.pairwise(ends.tolist())]
        else:
            parts = [self.query(x), self.key(kv), self.value(kv)]
        heads = (self.n_head, self.kv_heads, self.kv_heads)
        q, k, v = (self._split(part, n) for part, n in zip(parts, heads, strict=True))
        return [q, k, v] if not self.qk_norm else [self.query_norm(q), self.key_norm(k), v]

    def _split(self, X: TensorVariable, n_head: int) -> TensorVariable:
        return X.reshape((_size(X, 0), _size(X, 1), n_head, self.head_dim)).transpose(0, 2, 1, 3)

    def _combined(self, Y: TensorVariable, x: TensorVariable) -> TensorVariable:
        return self.out(Y.transpose(0, 2, 1, 3).reshape((_size(x, 0), _size(x, 1), self.n_embd)))

    def _attended(self, q: TensorVariable, k: TensorVariable, v: TensorVariable, mask: Any) -> TensorVariable:
        Y = scaled_dot_product_attention(q, k, v, mask=mask, is_causal=self.is_causal, name=described(self))
        if self.drop is None:
            return Y
        weights = self.drop(attention_weights(q, k, mask=mask, is_causal=self.is_causal))
        if self.kv_heads == self.n_head:
            return in_training(weights @ v, Y)
        groups = (_size(q, 0), self.kv_heads, self.n_head // self.kv_heads, _size(q, 2), _size(k, 2))
        shape = (_size(q, 0), self.n_head, _size(q, 2), self.head_dim)
        return in_training((weights.reshape(groups) @ v[:, :, None]).reshape(shape), Y)

    def _decoded(
        self, now: Decoding, q: TensorVariable, k: TensorVariable, v: TensorVariable, mask: Any
    ) -> tuple[TensorVariable, Any]:
        """Attend to what is in the caches and to the new positions, up to each."""
        who = described(self)
        if not self.is_causal:
            raise ValueError(NOT_CAUSAL.format(who=who))
        if mask is not None:
            raise ValueError(MASKED.format(who=who))
        if q.type.shape[0] not in (None, now.batch):
            shape = q.type.shape
            raise ValueError(OTHER_BATCH.format(who=who, batch=now.batch, shape=shape, given=shape[0]))
        cached = now.append(self, k, v)
        n = _size(q, 2)
        visible: Any = now.visible(n)
        if self.alibi:
            distance = now.positions(n)[:, None, :, None] - np.arange(now.length)
            slopes = alibi_slopes(self.n_head).astype(q.type.dtype)[:, None, None]
            visible = _biased(-slopes * abs(distance).astype(q.type.dtype), visible)
        Y = scaled_dot_product_attention(q, cached.keys, cached.values, mask=visible, name=who)
        return Y, cached.moves


def _biased(bias: TensorVariable, mask: Any) -> TensorVariable:
    """Add a mask to a bias; one that is neither of booleans nor of floats stays, to be refused."""
    if mask is None:
        return bias
    mask = pt.as_tensor(mask)
    if mask.type.dtype == "bool":
        return pt.switch(mask, bias, np.asarray(-np.inf, bias.type.dtype))
    return bias + mask if mask.type.dtype.startswith("float") else mask


def _size(X: TensorVariable, axis: int) -> Any:
    """Give a size: a number where it is known."""
    size = X.type.shape[axis]
    return X.shape[axis] if size is None else size


class CausalSelfAttention(MultiheadAttention):
    """Attend from each position to itself and those before, for x of shape ``(batch, time, n_embd)``.

    A :class:`MultiheadAttention` that is always causal: the attention of language models.

    Parameters
    ----------
    name : str, optional
    n_embd, n_head, n_kv_head, fused_qkv, bias, out_proj_initializer, dropout, rotary, alibi, qk_norm
        As for :class:`MultiheadAttention`.

    Raises
    ------
    ValueError, TypeError
        As there.

    Examples
    --------
    >>> from ptml.layers import CausalSelfAttention, Input
    >>> attention = CausalSelfAttention("attn", n_embd=64, n_head=8)
    >>> attention(Input("x", (None, 128, 64))).type.shape
    (None, 128, 64)
    """

    kv_dim: int | None = attrs.field(default=None, init=False, repr=False)
    is_causal: bool = attrs.field(default=True, init=False, repr=False)
