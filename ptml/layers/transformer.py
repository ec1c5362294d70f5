"""Transformers: blocks of attention and feed-forward networks, and stacks of them."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.activations import GELU
from ptml.declare import sublayer
from ptml.initializers import Initializer
from ptml.layer import Layer
from ptml.layers.attention import MultiheadAttention, check_heads, rotary_or_none
from ptml.layers.dropout import Dropout, DropPath, a_probability
from ptml.layers.feature_norm import LayerNorm, RMSNorm
from ptml.layers.feed_forward import FeedForward, a_layer
from ptml.layers.relative_positions import RotaryPositions
from ptml.validate import an_initializer, described, flag, positive, positive_int

__all__ = ["TransformerBlock", "TransformerDecoder", "TransformerDecoderBlock", "TransformerEncoder"]

NORMS = {"layer": LayerNorm, "rms": RMSNorm}

BAD_NORM = "{who}: norm must be 'layer' or 'rms'; got {value!r}."


def _a_norm(module: Any, field: attrs.Attribute, value: Any) -> None:
    if value not in NORMS:
        raise ValueError(BAD_NORM.format(who=described(module), value=value))


class _Blocks(Layer):
    """What blocks and stacks of them have."""

    d_model: int = attrs.field(validator=positive_int)
    n_head: int = attrs.field(validator=positive_int)
    mlp_ratio: int = attrs.field(default=4, validator=positive_int)
    activation: Layer = attrs.field(default=GELU(), validator=a_layer)
    norm_first: bool = attrs.field(default=True, validator=flag)
    dropout: float = attrs.field(default=0.0, validator=a_probability)
    bias: bool = attrs.field(default=True, validator=flag)
    is_causal: bool = attrs.field(default=False, validator=flag)
    n_kv_head: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))
    fused_qkv: bool = attrs.field(default=False, validator=flag)
    epsilon: float = attrs.field(default=1e-5, validator=positive)
    residual_initializer: Initializer | None = attrs.field(
        default=None, validator=attrs.validators.optional(an_initializer)
    )
    hidden_dim: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))
    gated: bool = attrs.field(default=False, validator=flag)
    norm: str = attrs.field(default="layer", validator=_a_norm)
    attention_dropout: float = attrs.field(default=0.0, validator=a_probability)
    hidden_dropout: float = attrs.field(default=0.0, validator=a_probability)
    drop_path: float = attrs.field(default=0.0, validator=a_probability)
    rotary: RotaryPositions | None = attrs.field(default=None, validator=rotary_or_none)
    alibi: bool = attrs.field(default=False, validator=flag)
    qk_norm: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        check_heads(self, "d_model")

    def _norm(self, what: str) -> Layer:
        return NORMS[self.norm](f"{self.name}/{what}", n_in=self.d_model, epsilon=self.epsilon)

    def _like_this(self) -> dict[str, Any]:
        """Give the arguments of a block."""
        return {
            field.name: getattr(self, field.name) for field in attrs.fields(_Blocks) if field.name != "name"
        }


class _Block(_Blocks):
    """A block: residual branches, each normalized."""

    _takes_memory: ClassVar[bool] = False

    def _attention(self, what: str, **options: Any) -> MultiheadAttention:
        return MultiheadAttention(
            f"{self.name}/{what}",
            n_embd=self.d_model,
            n_head=self.n_head,
            n_kv_head=self.n_kv_head,
            bias=self.bias,
            out_proj_initializer=self.residual_initializer,
            dropout=self.attention_dropout,
            qk_norm=self.qk_norm,
            **options,
        )

    def _self_attention(self, is_causal: bool) -> MultiheadAttention:
        return self._attention(
            "attn", is_causal=is_causal, fused_qkv=self.fused_qkv, rotary=self.rotary, alibi=self.alibi
        )

    def _drop(self, what: str) -> Any:
        return Dropout(f"{self.name}/{what}_dropout", p=self.dropout) if self.dropout > 0 else None

    def _path(self, what: str) -> Any:
        return DropPath(f"{self.name}/{what}_path", p=self.drop_path) if self.drop_path > 0 else None

    @sublayer
    def norm1(self) -> Any:
        """The norm of the first branch."""
        return self._norm("norm1")

    @sublayer
    def attn(self) -> Any:
        """The attention of the sequence to itself."""
        return self._self_attention(self.is_causal)

    @sublayer
    def attn_drop(self) -> Any:
        """What drops of that, or None without it."""
        return self._drop("attn")

    @sublayer
    def attn_path(self) -> Any:
        """What drops that for whole examples, or None without it."""
        return self._path("attn")

    @sublayer
    def cross_norm(self) -> Any:
        """The norm of the branch that attends to a memory; None where none is attended to."""
        return self._norm("cross_norm") if self._takes_memory else None

    @sublayer
    def cross(self) -> Any:
        """The attention to the memory, or None without it."""
        if not self._takes_memory:
            return None
        return self._attention("cross", kv_dim=self.memory_dim)  # type: ignore[attr-defined]

    @sublayer
    def cross_drop(self) -> Any:
        """What drops of that, or None without it."""
        return self._drop("cross") if self._takes_memory else None

    @sublayer
    def cross_path(self) -> Any:
        """What drops that for whole examples, or None without it."""
        return self._path("cross") if self._takes_memory else None

    @sublayer
    def norm2(self) -> Any:
        """The norm of the second branch."""
        return self._norm("norm2")

    @sublayer
    def ff(self) -> Any:
        """The feed-forward network."""
        return FeedForward(
            f"{self.name}/ff",
            d_model=self.d_model,
            hidden_dim=self.hidden_dim,
            mlp_ratio=self.mlp_ratio,
            activation=self.activation,
            gated=self.gated,
            bias=self.bias,
            fc_out_initializer=self.residual_initializer,
            dropout=self.hidden_dropout,
        )

    @sublayer
    def ff_drop(self) -> Any:
        """What drops of that, or None without it."""
        return self._drop("ff")

    @sublayer
    def ff_path(self) -> Any:
        """What drops that for whole examples, or None without it."""
        return self._path("ff")

    def _branch(self, x: TensorVariable, norm: Layer, layer: Any, drops: tuple[Any, Any]) -> TensorVariable:
        """Add to x what a layer makes of it, normalized before or after."""
        Y = layer(norm(x) if self.norm_first else x)
        for drop in drops:
            Y = Y if drop is None else drop(Y)
        return x + Y if self.norm_first else norm(x + Y)


class TransformerBlock(_Block):
    r"""Self-attention, then a feed-forward network, each added to its input, for ``(batch, time, d_model)``.

    .. math::

        y &= x + \mathrm{attn}(\mathrm{norm}_1(x)) \\
        z &= y + \mathrm{ff}(\mathrm{norm}_2(y))

    With ``norm_first=False``, as in the original transformer, the sums are normalized instead:
    :math:`y = \mathrm{norm}_1(x + \mathrm{attn}(x))`, :math:`z = \mathrm{norm}_2(y + \mathrm{ff}(y))`.

    Called as ``block(x)``, or ``block(x, mask=mask)`` with a mask as :class:`MultiheadAttention` takes it.

    Parameters
    ----------
    name : str, optional
    d_model : int
        The size of the last axis of input and output.
    n_head : int
        The number of heads, which divides `d_model`.
    mlp_ratio : int
        The width of the feed-forward network, in units of `d_model`; 4 unless given.
    activation : Layer
        The activation in it; `GELU` unless given.
    norm_first : bool
        True unless given.
    dropout : float
        The probability that an element is dropped of what is added, in training; 0 unless given.
    bias : bool
        Whether all projections have biases; True unless given.
    is_causal : bool
        Whether no position attends to a later one; False unless given.
    n_kv_head : int, optional
        As for :class:`MultiheadAttention`.
    fused_qkv : bool
        As for :class:`MultiheadAttention`; False unless given.
    epsilon : float
        What the norms add to a variance; 1e-5 unless given.
    residual_initializer : Initializer, optional
        Of the weights of the two projections whose results are added; that of `Linear` unless given. A deep
        stack of n blocks often takes ``Normal(scale=0.02 / math.sqrt(2 * n))``.
    hidden_dim : int, optional
        The width of the feed-forward network; `mlp_ratio` decides unless given.
    gated : bool
        Whether the feed-forward network is gated; False unless given.
    norm : {"layer", "rms"}
        `LayerNorm` or `RMSNorm`; the former unless given.
    attention_dropout : float
        The probability that a weight of attention is dropped, in training; 0 unless given.
    hidden_dropout : float
        The same, of an element within the feed-forward network.
    drop_path : float
        The probability that an example skips a branch, in training; 0 unless given.
    rotary, alibi, qk_norm
        As for :class:`MultiheadAttention`.

    Raises
    ------
    ValueError, TypeError
        As :class:`MultiheadAttention` does.

    References
    ----------
    Vaswani and others, "Attention is all you need" (2017), section 3.1. Xiong and others, "On layer
    normalization in the transformer architecture" (2020), table 1.

    Examples
    --------
    >>> from ptml.layers import Input, Repeat, TransformerBlock
    >>> net = Repeat(2, TransformerBlock("block", d_model=16, n_head=4, is_causal=True))
    >>> net(Input("x", (None, None, 16))).type.shape
    (None, None, 16)
    >>> import ptml
    >>> list(ptml.init(net, seed=0))[:3]
    ['block0/norm1/scale', 'block0/norm1/b', 'block0/attn/query/W']

    A block as language models have it now:

    >>> from ptml.activations import SiLU
    >>> from ptml.layers import RotaryPositions
    >>> block = TransformerBlock(
    ...     "block", d_model=16, n_head=4, n_kv_head=2, is_causal=True, bias=False, norm="rms",
    ...     activation=SiLU(), gated=True, hidden_dim=40, rotary=RotaryPositions(),
    ... )
    """

    def build(self, x: TensorVariable, mask: Any = None) -> TensorVariable:
        x = self._branch(x, self.norm1, lambda y: self.attn(y, mask=mask), (self.attn_drop, self.attn_path))
        return self._branch(x, self.norm2, self.ff, (self.ff_drop, self.ff_path))


class TransformerDecoderBlock(_Block):
    r"""A block that also attends to another sequence: causal self-attention, cross-attention, feed-forward.

    Called as ``block(x, memory)``, with x of shape ``(batch, time, d_model)`` and `memory`, such as what an
    encoder gives, of shape ``(batch, memory_time, memory_dim)``; ``mask=`` and ``memory_mask=`` are masks, as
    :class:`MultiheadAttention` takes them, of the first attention and of the second.

    Parameters
    ----------
    name : str, optional
    d_model, n_head
        As for :class:`TransformerBlock`, as all others.
    memory_dim : int, optional
        The size of the memory's last axis; `d_model` unless given.
    is_causal : bool
        Whether the self-attention is causal; True unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MultiheadAttention` does.

    Notes
    -----
    ``norm1`` belongs to the self-attention, ``norm2`` to the feed-forward network, and ``cross_norm`` to the
    cross-attention between.

    References
    ----------
    Vaswani and others, "Attention is all you need" (2017), section 3.1.

    Examples
    --------
    >>> from ptml.layers import Input, TransformerDecoderBlock
    >>> block = TransformerDecoderBlock("block", d_model=16, n_head=4)
    >>> block(Input("x", (None, 5, 16)), Input("memory", (None, 9, 16))).type.shape
    (None, 5, 16)
    """

    is_causal: bool = attrs.field(default=True, validator=flag)
    memory_dim: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))

    _takes_memory = True

    def build(
        self, x: TensorVariable, memory: TensorVariable, mask: Any = None, memory_mask: Any = None
    ) -> TensorVariable:
        x = self._branch(x, self.norm1, lambda y: self.attn(y, mask=mask), (self.attn_drop, self.attn_path))
        x = self._branch(
            x,
            self.cross_norm,
            lambda y: self.cross(y, memory, mask=memory_mask),
            (self.cross_drop, self.cross_path),
        )
        return self._branch(x, self.norm2, self.ff, (self.ff_drop, self.ff_path))


class _Stack(_Blocks):
    """A stack of blocks, and a norm of what the last one gives."""

    n_layer: int = attrs.field(validator=positive_int)
    final_norm: bool | None = attrs.field(default=None, validator=attrs.validators.optional(flag))

    def _block(self, k: int) -> Layer:
        raise TypeError(f"{type(self).__name__} says in no _block(self, k) what it stacks.")

    @sublayer
    def blocks(self) -> Any:
        """The blocks, in order."""
        return tuple(self._block(k) for k in range(self.n_layer))

    @sublayer
    def norm_out(self) -> Any:
        """The norm of what the last block gives, or None without one."""
        return (
            self._norm("norm") if (self.norm_first if self.final_norm is None else self.final_norm) else None
        )

    def _finished(self, x: TensorVariable) -> TensorVariable:
        return x if self.norm_out is None else self.norm_out(x)


class TransformerEncoder(_Stack):
    """A stack of transformer blocks, for x of shape ``(batch, time, d_model)``.

    With ``is_causal=True`` it is the trunk of a language model. Called as ``encoder(x)``, or ``encoder(x,
    mask=mask)``; the mask is that of every block.

    Parameters
    ----------
    name : str, optional
    n_layer : int
        The number of blocks, called ``block0``, ``block1``, ... below the stack's name.
    d_model, n_head
        As for :class:`TransformerBlock`, as all others, which go to every block.
    final_norm : bool, optional
        Whether what the last block gives is normalized, as it has to be where blocks normalize first; what
        `norm_first` is unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MultiheadAttention` does.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input, TransformerEncoder
    >>> encoder = TransformerEncoder("encoder", n_layer=2, d_model=16, n_head=4)
    >>> encoder(Input("x", (None, None, 16))).type.shape
    (None, None, 16)
    >>> list(ptml.init(encoder, seed=0))[0]
    'encoder/block0/norm1/scale'
    """

    def _block(self, k: int) -> TransformerBlock:
        return TransformerBlock(f"{self.name}/block{k}", **self._like_this())

    def build(self, x: TensorVariable, mask: Any = None) -> TensorVariable:
        for block in self.blocks:
            x = block(x, mask=mask)
        return self._finished(x)


class TransformerDecoder(_Stack):
    """A stack of transformer blocks that also attend to a memory, such as what an encoder gives.

    Called as ``decoder(x, memory)``, with ``mask=`` and ``memory_mask=`` as for
    :class:`TransformerDecoderBlock`.

    Parameters
    ----------
    name : str, optional
    n_layer, final_norm
        As for :class:`TransformerEncoder`.
    d_model, n_head
        As for :class:`TransformerDecoderBlock`, as all others, which go to every block.

    Raises
    ------
    ValueError, TypeError
        As :class:`MultiheadAttention` does.

    Examples
    --------
    >>> from ptml.layers import Input, TransformerDecoder
    >>> decoder = TransformerDecoder("decoder", n_layer=2, d_model=16, n_head=4, memory_dim=24)
    >>> decoder(Input("x", (None, 5, 16)), Input("memory", (None, 9, 24))).type.shape
    (None, 5, 16)
    """

    is_causal: bool = attrs.field(default=True, validator=flag)
    memory_dim: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive_int))

    def _block(self, k: int) -> TransformerDecoderBlock:
        options = self._like_this()
        return TransformerDecoderBlock(f"{self.name}/block{k}", memory_dim=self.memory_dim, **options)

    def build(
        self, x: TensorVariable, memory: TensorVariable, mask: Any = None, memory_mask: Any = None
    ) -> TensorVariable:
        for block in self.blocks:
            x = block(x, memory, mask=mask, memory_mask=memory_mask)
        return self._finished(x)
