"""Powers on PyTorch, whose function for them has another name than PyTensor looks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytensor.link.pytorch.dispatch import pytorch_funcify
from pytensor.scalar.basic import Pow

__all__ = ["TorchPow"]


class TorchPow(Pow):
    """A power that torch.pow computes."""

    nfunc_spec = ("pow", 2, 1)


@pytorch_funcify.register(TorchPow)
def _torch_pow(op: TorchPow, node: Any = None, **kwargs: Any) -> Callable[..., Any]:
    return torch.pow
