"""PyTensor's PyTorch mode, mended where it compares tensors and where it holds constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.link.utils
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import PYTORCH as PYTENSOR_PYTORCH
from pytensor.compile.mode import Mode
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Variable
from pytensor.link.pytorch.linker import PytorchLinker
from pytensor.scalar.basic import EQ, GE, GT, LE, LT, Add, Mul, Pow, Sub
from pytensor.tensor.elemwise import Elemwise

from ptml.backends.everywhere import LAST, everywhere
from ptml.backends.loops import UnrolledScan, in_place_of_scans
from ptml.backends.native import keeping_native
from ptml.backends.pytorch.power import TorchPow
from ptml.backends.turned import turned_reads, turned_writes

__all__ = ["PYTORCH", "ConstantKeepingLinker"]


#: Unsigned numbers of more than a byte, which Torch stores and casts, and little else.
UNSIGNED = ("uint16", "uint32")


class ConstantKeepingLinker(PytorchLinker):
    """Let torch.compile find the constants of a graph.

    It looks for the globals of the generated code in the module whose name that code bears, where PyTensor
    puts its functions for the time of a call, but not its constants.
    """

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        constants = {name: value for name, value in fn.__globals__.items() if isinstance(value, torch.Tensor)}
        # Written out, a loop would take torch.compile minutes: its program runs operation by operation.
        unrolls = any(isinstance(node.op, UnrolledScan) for node in self.fgraph.apply_nodes)
        compiled = super().jit_compile(_uncompiled(fn) if unrolls else fn)

        def call(*inputs: Any) -> Any:
            for name, value in constants.items():
                setattr(pytensor.link.utils, name, value)
            try:
                return compiled(*inputs)
            finally:
                for name in constants:
                    delattr(pytensor.link.utils, name)

        return call


def _uncompiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that torch.compile leaves as it is."""
    import torch

    plain = torch.compiler.disable(fn)
    return lambda *inputs: plain(*inputs)


def _is_converted_by_its_graph(node: Apply) -> bool:
    from pytensor.link.pytorch.dispatch import pytorch_funcify

    return pytorch_funcify.dispatch(type(node.op)) is pytorch_funcify.dispatch(OpFromGraph)


def _compares(node: Apply) -> bool:
    return isinstance(node.op.scalar_op, EQ)


def _compared(node: Apply) -> list[Variable]:
    return [pt.switch(pt.neq(*node.inputs), np.False_, np.True_)]


def _orders_unsigned(node: Apply) -> bool:
    return isinstance(node.op.scalar_op, LT | LE | GT | GE) and any(
        v.type.dtype in UNSIGNED for v in node.inputs
    )


def _reckons_unsigned(node: Apply) -> bool:
    return isinstance(node.op.scalar_op, Add | Sub | Mul) and node.outputs[0].type.dtype in UNSIGNED


def _as_signed(node: Apply) -> list[Variable]:
    # A cast to fewer bits drops the others, as unsigned arithmetic does.
    result = node.op(*(pt.cast(v, "int64") for v in node.inputs))
    return [pt.cast(result, node.outputs[0].type.dtype)]


def _is_a_power(node: Apply) -> bool:
    return type(node.op.scalar_op) is Pow


def _as_torchs_power(node: Apply) -> list[Variable]:
    return [Elemwise(TorchPow(node.op.scalar_op.output_types_preference))(*node.inputs)]


# PyTensor compiles a nested graph by itself, where its constants are out of reach; it converts equality to
# torch.equal, which says in one bool whether two tensors are equal altogether, and looks for a torch.power.
# Torch orders no unsigned numbers but bytes, reckons with them only where it compiles, has no slices that go
# backwards, and PyTensor no loops for it.
PYTORCH: Mode = keeping_native(
    Mode(ConstantKeepingLinker(), PYTENSOR_PYTORCH.provided_optimizer), "pytorch"
).register(
    (everywhere(OpFromGraph, _is_converted_by_its_graph, inline_ofg_node), LAST),
    (everywhere(Elemwise, _compares, _compared), LAST + 1),
    (everywhere(Elemwise, _orders_unsigned, _as_signed), LAST + 2),
    (everywhere(Elemwise, _reckons_unsigned, _as_signed), LAST + 3),
    (everywhere(Elemwise, _is_a_power, _as_torchs_power), LAST + 4),
    (in_place_of_scans(UnrolledScan, lambda op: True), LAST + 5),
    (turned_reads, LAST + 6),
    (turned_writes, LAST + 7),
)
