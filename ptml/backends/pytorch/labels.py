"""PyTorch kernels of the checks of targets: of shapes at a call, of labels not at all, as on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.labels import CheckLabels, CheckProbabilities, CheckShape


@pytorch_funcify.register(CheckShape)
def pytorch_check_shape(op: CheckShape, **kwargs: Any) -> Callable:
    return op.check


@pytorch_funcify.register(CheckLabels)
@pytorch_funcify.register(CheckProbabilities)
def pytorch_check(op: CheckLabels | CheckProbabilities, **kwargs: Any) -> Callable:
    def check(labels, *n_classes):
        return labels

    return check
