"""Convolution, and the two ops that its gradients are."""

from ptml.convolution.ops import Convolve, ConvolveKernel, ConvolveTransposed
from ptml.convolution.shapes import Sliding

__all__ = ["Convolve", "ConvolveKernel", "ConvolveTransposed", "Sliding"]
