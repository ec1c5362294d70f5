"""Attention by PyTorch's own function, where every query has a key to attend to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pytensor.graph.basic import Apply

from ptml.backends.native import native
from ptml.ops.attention.ops import Attention


def _takes(node: Apply) -> bool:
    """Leave masks alone; PyTorch lets the first query and the first key be of one time, not the last ones."""
    q, k, *rest = node.inputs
    lengths = q.type.shape[-2], k.type.shape[-2]
    square = lengths[0] is not None and lengths[0] == lengths[1]
    heads = q.type.shape[-3], k.type.shape[-3]
    return len(rest) == 1 and (square or not node.op.is_causal) and None not in heads and q.type.ndim == 4


@native("pytorch", Attention, takes=_takes)
def pytorch_attention(op: Attention, node: Apply, **kwargs: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    heads, kv_heads = (variable.type.shape[-3] for variable in node.inputs[:2])
    attend = torch.nn.functional.scaled_dot_product_attention

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grouped = heads != kv_heads
        result = attend(q, k, v, is_causal=op.is_causal, scale=op.scale, enable_gqa=grouped)
        # What nothing reads is not computed: programs are compiled whole.
        keys = k.repeat_interleave(heads // kv_heads, dim=-3) if grouped else k
        scores = (q @ keys.mT) * (1 / math.sqrt(q.shape[-1]) if op.scale is None else op.scale)
        if op.is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~allowed, -math.inf)
        return result, torch.logsumexp(scores, dim=-1)

    return attention
