"""Attention: what queries find in keys and values."""

from ptml.ops.attention.dot_product import attention_weights, scaled_dot_product_attention
from ptml.ops.attention.ops import Attention, AttentionGradient, AttentionMaskGradient

__all__ = [
    "Attention",
    "AttentionGradient",
    "AttentionMaskGradient",
    "attention_weights",
    "scaled_dot_product_attention",
]
