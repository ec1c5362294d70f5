"""Lines of the conformance table for attention and transformers, with references from the definitions."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf

from ptml.activations import SiLU
from ptml.layers import (
    CausalSelfAttention,
    FeedForward,
    MultiheadAttention,
    RotaryPositions,
    TransformerBlock,
)


def linear(p, name, x):
    return x @ p[f"{name}/W"] + p.get(f"{name}/b", 0.0)


def gelu(x):
    # A complex step is far too small for its square to count.
    real = np.real(x)
    integral = 0.5 * (1 + erf(real / math.sqrt(2)))
    slope = np.exp(-(real**2) / 2) / math.sqrt(2 * math.pi)
    return x * (integral + 1j * np.imag(x) * slope if np.iscomplexobj(x) else integral)


def silu(x):
    return x / (1 + np.exp(-x))


def layer_norm(p, name, x, epsilon=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return y * p[f"{name}/scale"] + p[f"{name}/b"]


def rms_norm(p, name, x, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * p[f"{name}/scale"]


def turned(x):
    """Turn the features of each position, ``(time, n)``, by its angles."""
    y, n = x.copy(), x.shape[-1]
    for t in range(len(x)):
        for i in range(n // 2):
            angle = t / 10000 ** (2 * i / n)
            a, b = x[t, i], x[t, i + n // 2]
            y[t, i] = a * np.cos(angle) - b * np.sin(angle)
            y[t, i + n // 2] = a * np.sin(angle) + b * np.cos(angle)
    return y


def one_head(q, k, v, score):
    """Attend from each of some queries, ``(time, d)``; ``score(i, j)`` is added, and None is none at all."""
    out = np.zeros((len(q), v.shape[-1]), np.result_type(q, k, v))
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if score(i, j) is not None]
        scores = np.array([q[i] @ k[j] / math.sqrt(q.shape[-1]) + score(i, j) for j in seen])
        if seen:
            weights = np.exp(scores - np.real(scores).max())
            out[i] = (weights / weights.sum()) @ np.array([v[j] for j in seen])
    return out


def attention(
    p, name, x, n_head, kv=None, n_kv_head=None, causal=False, rotary=False, alibi=False, mask=None
):
    """Attend by heads, example by example, head by head, query by query."""
    kv, n_kv_head, d = x if kv is None else kv, n_kv_head or n_head, x.shape[-1] // n_head
    if f"{name}/qkv/W" in p:
        both = x.shape[-1] + n_kv_head * d
        q, k, v = np.split(linear(p, f"{name}/qkv", x), [x.shape[-1], both], axis=-1)
    else:
        q, k, v = (linear(p, f"{name}/{what}", of) for what, of in (("query", x), ("key", kv), ("value", kv)))
    # Norms of queries and keys have parameters of their own, which may be the complex ones.
    found = np.zeros(x.shape, np.result_type(q, k, v, *p.values()))
    for b in range(len(x)):
        for h in range(n_head):
            mine, shared = slice(h * d, (h + 1) * d), h // (n_head // n_kv_head)
            theirs = slice(shared * d, (shared + 1) * d)
            one_q, one_k, one_v = q[b][:, mine], k[b][:, theirs], v[b][:, theirs]
            if f"{name}/query_norm/scale" in p:
                one_q = rms_norm(p, f"{name}/query_norm", one_q)
                one_k = rms_norm(p, f"{name}/key_norm", one_k)
            if rotary:
                one_q, one_k = turned(one_q), turned(one_k)
            slope = 2 ** (-8 * (h + 1) / n_head) if alibi else 0.0

            def score(i, j, b=b, h=h, slope=slope):
                if causal and j > i:
                    return None
                given = 0.0 if mask is None else mask[b, h, i, j]
                return None if given == -np.inf else given - slope * abs(i - j)

            found[b, :, mine] = one_head(one_q, one_k, one_v, score)
    return linear(p, f"{name}/out", found)


def block(p, name, x, n_head, norm_first=True, norm=layer_norm, feed_forward=None, **options):
    def attend(y):
        return attention(p, f"{name}/attn", y, n_head, **options)

    def feed(y):
        return (feed_forward or plain)(p, f"{name}/ff", y)

    if norm_first:
        x = x + attend(norm(p, f"{name}/norm1", x))
        return x + feed(norm(p, f"{name}/norm2", x))
    x = norm(p, f"{name}/norm1", x + attend(x))
    return norm(p, f"{name}/norm2", x + feed(x))


def plain(p, name, x, activation=gelu):
    return linear(p, f"{name}/fc_out", activation(linear(p, f"{name}/fc_in", x)))


def gated(p, name, x, activation=silu):
    up, gate = np.split(linear(p, f"{name}/fc_in", x), 2, axis=-1)
    return linear(p, f"{name}/fc_out", up * activation(gate))


def weights(name, *layers, bias=True):
    return tuple(f"{name}/{layer}/{leaf}" for layer in layers for leaf in ("W", "b")[: 1 + bias])


def norms(name, *layers):
    return tuple(f"{name}/{layer}/{leaf}" for layer in layers for leaf in ("scale", "b"))


PROJECTIONS = ("query", "key", "value", "out")


def block_leaves(name):
    return (
        *norms(name, "norm1"),
        *weights(name, *(f"attn/{what}" for what in PROJECTIONS)),
        *norms(name, "norm2"),
        *weights(name, "ff/fc_in", "ff/fc_out"),
    )


CASES = {
    "attention": {
        "layer": lambda: MultiheadAttention("attn", n_embd=4, n_head=2),
        "shape": (2, 3, 4),
        "reference": lambda p, x: attention(p, "attn", x, 2),
        "leaves": weights("attn", *PROJECTIONS),
    },
    "attention_grouped": {
        "layer": lambda: MultiheadAttention(
            "grouped", n_embd=4, n_head=4, n_kv_head=2, fused_qkv=True, is_causal=True
        ),
        "shape": (2, 3, 4),
        "reference": lambda p, x: attention(p, "grouped", x, 4, n_kv_head=2, causal=True),
        "leaves": weights("grouped", "qkv", "out"),
    },
    "attention_with_positions": {
        "layer": lambda: MultiheadAttention(
            "placed", n_embd=4, n_head=2, n_kv_head=1, rotary=RotaryPositions(), alibi=True, qk_norm=True
        ),
        "shape": (2, 3, 4),
        "reference": lambda p, x: attention(p, "placed", x, 2, n_kv_head=1, rotary=True, alibi=True),
        "leaves": (
            *weights("placed", "query", "key", "value"),
            "placed/query_norm/scale",
            "placed/key_norm/scale",
            *weights("placed", "out"),
        ),
    },
    "causal_self_attention": {
        "layer": lambda: CausalSelfAttention("causal", n_embd=4, n_head=2, bias=False),
        "shape": (2, 3, 4),
        "reference": lambda p, x: attention(p, "causal", x, 2, causal=True),
        "leaves": weights("causal", *PROJECTIONS, bias=False),
    },
    "feed_forward": {
        "layer": lambda: FeedForward("ff", d_model=3, mlp_ratio=2),
        "shape": (2, 2, 3),
        "reference": lambda p, x: plain(p, "ff", x),
        "leaves": weights("ff", "fc_in", "fc_out"),
    },
    "feed_forward_gated": {
        "layer": lambda: FeedForward(
            "gated", d_model=3, hidden_dim=4, activation=SiLU(), gated=True, bias=False
        ),
        "shape": (2, 3),
        "reference": lambda p, x: gated(p, "gated", x),
        "leaves": weights("gated", "fc_in", "fc_out", bias=False),
    },
    "transformer_block": {
        "layer": lambda: TransformerBlock("block", d_model=4, n_head=2, mlp_ratio=1, is_causal=True),
        "shape": (2, 3, 4),
        "reference": lambda p, x: block(p, "block", x, 2, causal=True),
        "leaves": block_leaves("block"),
    },
}
