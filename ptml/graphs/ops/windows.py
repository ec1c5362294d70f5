"""Ops of the library's own over windows and spatial axes: padding, pooling, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.op import Op

from ptml.graphs.fields import COUNT, FLAG, NUMBER, PLAIN, choice, items
from ptml.graphs.registry import register_op
from ptml.ops import padding, pooling, resizing
from ptml.ops.pooling.windows import Numbers

__all__: list[str] = []

_WIDTHS = {"widths": items(items(COUNT)), "mode": choice(*padding.MODES)}
register_op(padding.Pad, "ptml.Pad", fields={**_WIDTHS, "value": NUMBER})
register_op(padding.PadGradient, "ptml.PadGradient", fields=_WIDTHS)

_SLIDING = ("size", "stride", "dilation", "before", "after", "counted")


def _written(op: Any) -> dict[str, Any]:
    """Write the windows of each axis: one number for even ones, six items for those that slide."""
    names = [("count",) if isinstance(one, pooling.Even) else _SLIDING for one in op.windows]
    return {
        "windows": tuple(
            tuple(getattr(one, name) for name in of) for one, of in zip(op.windows, names, strict=True)
        )
    }


def _reader(kind: type[Op]) -> Callable[..., Op]:
    def read(windows: Any) -> Op:
        return kind(tuple((pooling.Even if len(one) == 1 else pooling.Sliding)(*one) for one in windows))

    return read


for _op in (
    pooling.MaxPool,
    pooling.MaxPoolGradient,
    pooling.MaxPoolPick,
    pooling.AveragePool,
    pooling.AveragePoolGradient,
):
    register_op(
        _op,
        f"ptml.{_op.__name__}",
        fields={"windows": items(items(PLAIN))},
        encode=_written,
        decode=_reader(_op),
    )
register_op(Numbers, "ptml.Numbers", fields={"axis": COUNT})

_RESIZING = {
    "axis": COUNT,
    "mode": choice("nearest", "linear", "cubic"),
    "size": COUNT,
    "factor": COUNT,
    "align_corners": FLAG,
}
register_op(resizing.Resize, "ptml.Resize", fields=_RESIZING)
register_op(resizing.ResizeGradient, "ptml.ResizeGradient", fields=_RESIZING)
