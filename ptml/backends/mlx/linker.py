"""PyTensor's MLX linker, with results evaluated when a call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.mlx.linker import MLXLinker

from ptml.backends.everywhere import LAST, unchecked

__all__ = ["MLX", "EvaluatingMLXLinker"]


class EvaluatingMLXLinker(MLXLinker):
    """Evaluate updates together with the outputs.

    MLX computes an array when somebody looks at it. A cell that no output depends on would pile up the
    graphs of all calls until the state is read.
    """

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        import mlx.core as mx

        compiled = super().jit_compile(fn)

        def call(*inputs: Any) -> Any:
            outputs = compiled(*inputs)
            mx.async_eval(outputs)
            return outputs

        return call


MLX = Mode(
    EvaluatingMLXLinker(), RewriteDatabaseQuery(include=["fast_run", "mlx"], exclude=["fusion"])
).register((unchecked, LAST))
