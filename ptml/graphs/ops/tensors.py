"""Ops of shapes and layouts, of order, and checks."""

from __future__ import annotations

from typing import Any

from pytensor.compile import ops as compiled
from pytensor.gradient import DisconnectedGrad, GradClip, GradScale, UndefinedGrad, ZeroGrad
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.tensor import basic, extra_ops, fourier
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d
from pytensor.tensor.sort import ArgSortOp, SortOp

from ptml.graphs.errors import GraphError
from ptml.graphs.fields import (
    COUNT,
    DTYPE,
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    Field,
    Reader,
    Writer,
    choice,
    items,
    optional,
)
from ptml.graphs.registry import register_op
from ptml_state.strictjson import short

__all__ = ["EXCEPTION"]

NO_EXCEPTION = "takes one of {known}; got {given}"
OTHER_EXCEPTION = "A check raises {kind}, which a text cannot name. It can name {known}."

#: What a check may raise.
_EXCEPTIONS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        AssertionError,
        FloatingPointError,
        IndexError,
        KeyError,
        LookupError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    )
}


def _write_exception(kind: type[Exception], writer: Writer) -> str:
    if _EXCEPTIONS.get(kind.__name__) is not kind:
        raise GraphError(OTHER_EXCEPTION.format(kind=kind.__name__, known=", ".join(_EXCEPTIONS)))
    return kind.__name__


def _read_exception(name: Any, reader: Reader, where: str) -> type[Exception]:
    if not isinstance(name, str) or name not in _EXCEPTIONS:
        raise GraphError(NO_EXCEPTION.format(known=", ".join(_EXCEPTIONS), given=short(name)), where)
    return _EXCEPTIONS[name]


#: A kind of exception, one of Python's own.
EXCEPTION = Field(_write_exception, _read_exception)


def _read_new_axis(value: Any, reader: Reader, where: str) -> Any:
    if value == "x" or type(value) is int:
        return value
    raise GraphError(f"takes an axis or 'x'; got {short(value)}", where)


_NEW_AXES = items(Field(lambda value, writer: value, _read_new_axis))

register_op(DimShuffle, fields={"input_ndim": COUNT, "new_order": _NEW_AXES})
register_op(Shape, fields={})
register_op(Shape_i, fields={"i": COUNT})
register_op(SpecifyShape, fields={})
register_op(Reshape, fields={"ndim": COUNT})
register_op(JoinDims, fields={"start_axis": COUNT, "n_axes": COUNT})
register_op(SplitDims, fields={"axis": COUNT})

register_op(basic.TensorFromScalar, fields={})
register_op(basic.ScalarFromTensor, fields={})
register_op(basic.Alloc, fields={})
register_op(basic.AllocEmpty, fields={"dtype": DTYPE})
register_op(basic.ARange, fields={"dtype": DTYPE})
register_op(basic.Choose, fields={"mode": choice("raise", "wrap", "clip")})
register_op(basic.ExtractDiag, fields={"offset": INTEGER, "axis1": COUNT, "axis2": COUNT, "view": FLAG})
register_op(basic.Eye, fields={"dtype": DTYPE})
register_op(basic.Join, fields={"axis": COUNT})
register_op(basic.MakeVector, fields={"dtype": DTYPE})
register_op(basic.Nonzero, fields={})
register_op(basic.PermuteRowElements, fields={"inverse": FLAG})
register_op(basic.Split, fields={"len_splits": COUNT, "axis": COUNT})

register_op(extra_ops.Bartlett, fields={})
register_op(extra_ops.CpuContiguous, fields={})
register_op(extra_ops.CumOp, fields={"axis": INTEGER, "mode": choice("add", "mul")})
register_op(extra_ops.FillDiagonal, fields={})
register_op(extra_ops.FillDiagonalOffset, fields={})
register_op(
    extra_ops.RavelMultiIndex,
    fields={"mode": choice("raise", "wrap", "clip"), "order": choice("C", "F")},
)
register_op(extra_ops.Repeat, fields={"axis": INTEGER})
register_op(extra_ops.SearchsortedOp, fields={"side": choice("left", "right")})
register_op(
    extra_ops.Unique,
    fields={
        "return_index": FLAG,
        "return_inverse": FLAG,
        "return_counts": FLAG,
        "axis": optional(INTEGER),
    },
)
register_op(extra_ops.UnravelIndex, fields={"order": choice("C", "F")})

_SORTED = {"kind": choice("quicksort", "mergesort", "heapsort", "stable"), "axis": INTEGER}
register_op(SortOp, fields=_SORTED)
register_op(ArgSortOp, fields=_SORTED)

register_op(fourier.Fourier, fields={})
register_op(Convolve1d, fields={})
register_op(Convolve2d, fields={"method": choice("direct", "fft", "auto")})

register_op(CheckAndRaise, fields={"exc_type": EXCEPTION, "msg": TEXT})
register_op(Assert, fields={"msg": TEXT})

register_op(compiled.DeepCopyOp, fields={})
register_op(compiled.ViewOp, fields={})
register_op(DisconnectedGrad, fields={})
register_op(UndefinedGrad, fields={})
register_op(ZeroGrad, fields={})
register_op(
    GradClip,
    fields={"clip_lower_bound": NUMBER, "clip_upper_bound": NUMBER},
)
register_op(GradScale, fields={"multiplier": NUMBER})
