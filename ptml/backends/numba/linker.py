"""PyTensor's numba linker, with arithmetic that is the same however it was compiled."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import NUMBA as PYTENSOR_NUMBA
from pytensor.compile.mode import Mode
from pytensor.configdefaults import config
from pytensor.link.numba.linker import NumbaLinker

__all__ = ["NUMBA", "StrictNumbaLinker"]


class StrictNumbaLinker(NumbaLinker):
    """Compile without fast-math flags.

    Under them LLVM may reorder sums, and what it makes of a kernel hangs on whether the kernel was compiled
    into its caller or came from the cache. A run that is resumed in another process would then differ in
    the last bit.
    """

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        # PyTensor's conversions read the flag while they run, and take it as no argument.
        with config.change_flags(numba__fastmath=False):
            return super().make_all(*args, **kwargs)


NUMBA = Mode(StrictNumbaLinker(), PYTENSOR_NUMBA.provided_optimizer)
