"""PyTensor's MLX linker, with results evaluated when a call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.mlx.linker import MLXLinker

from ptml.backends.everywhere import LAST, unchecked
from ptml.backends.loops import UnrolledScan, holds_ending_loops, in_place_of_scans
from ptml.backends.native import keeping_native

__all__ = ["MLX", "EvaluatingMLXLinker"]


class EvaluatingMLXLinker(MLXLinker):
    """Evaluate updates together with the outputs.

    MLX computes an array when somebody looks at it. A cell that no output depends on would pile up the
    graphs of all calls until the state is read.
    """

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        import mlx.core as mx

        # Where a loop ends is known as it runs, and what is compiled has no branches.
        if holds_ending_loops(self.fgraph):
            compiled = MLXLinker(use_compile=False).jit_compile(fn)
        else:
            compiled = super().jit_compile(fn)

        def call(*inputs: Any) -> Any:
            outputs = compiled(*inputs)
            mx.async_eval(outputs)
            return outputs

        return call


# A loop keeps no longer a trace than is used.
_QUERY = RewriteDatabaseQuery(include=["fast_run", "mlx", "scan_save_mem_no_prealloc"], exclude=["fusion"])
MLX: Mode = keeping_native(Mode(EvaluatingMLXLinker(), _QUERY), "mlx").register(
    (unchecked, LAST), (in_place_of_scans(UnrolledScan, lambda op: True), LAST + 1)
)
