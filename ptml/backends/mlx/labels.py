"""MLX kernels of the checks of targets: shapes are looked at, and what tracing cannot see passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.labels import CheckLabels, CheckProbabilities, CheckShape


@mlx_funcify.register(CheckShape)
def mlx_check_shape(op: CheckShape, **kwargs: Any) -> Callable:
    return op.check


@mlx_funcify.register(CheckLabels)
@mlx_funcify.register(CheckProbabilities)
def mlx_check(op: CheckLabels | CheckProbabilities, **kwargs: Any) -> Callable:
    def check(labels, *n_classes):
        return labels

    return check
