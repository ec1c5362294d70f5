"""PyTorch kernels of recomputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.ops.recompute import After, Recomputed


@pytorch_funcify.register(After)
@pytorch_funcify.register(Recomputed)
def pytorch_first_inputs(op: After | Recomputed, **kwargs: Any) -> Callable:
    return lambda *inputs: inputs[: op.n] if op.n > 1 else inputs[0]
