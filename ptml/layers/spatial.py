"""What layers of channels-last data without parameters have in common: padding, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_floating, check_ndim
from ptml.layer import Layer
from ptml.layout import check_layout
from ptml.lengths import check_length
from ptml.ops.windows import SPATIAL

__all__ = ["Spatial", "check_nonempty"]

LAYOUTS = {1: "NTC", 2: "NHWC", 3: "NDHWC"}


class Spatial(Layer):
    """A layer of data of shape ``(batch, *spatial, channels)``."""

    n_inputs = 1
    n_spatial: ClassVar[int]

    def checked(self, X: TensorVariable, *, floating: bool = True) -> TensorVariable:
        """Check the dtype, the number of axes and the layout of what the layer is called on."""
        wants = f"(batch, {', '.join(SPATIAL[self.n_spatial])}, channels)"
        if floating:
            check_floating(self, X)
        check_ndim(self, X, minimum=self.n_spatial + 2, maximum=self.n_spatial + 2, wants=wants)
        check_layout(self, X, LAYOUTS[self.n_spatial])
        return X


def check_nonempty(layer: Spatial, X: TensorVariable, why: str, axes: Sequence[int] | None = None) -> Any:
    """Check that no spatial axis is empty.

    Parameters
    ----------
    layer : Spatial
    X : tensor
    why : str
        What needs positions, such as ``"a mean of none is no number"``.
    axes : sequence of int, optional
        The axes; all spatial ones unless given.
    """
    for axis in range(1, layer.n_spatial + 1) if axes is None else axes:
        X = check_length(layer, X, 1, axis=axis, of=f"position ({why})")
    return X
