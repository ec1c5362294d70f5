"""Convolution, and the two ops that its gradients are."""

from ptml.ops.convolution.ops import Convolve, ConvolveKernel, ConvolveTransposed
from ptml.ops.convolution.shapes import Sliding

__all__ = ["Convolve", "ConvolveKernel", "ConvolveTransposed", "Sliding"]
