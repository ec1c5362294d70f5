"""Convolutions with ReLU and pooling, and a dense layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.benchmarks.workloads.base import Arrays, Workload, entropy, scaled

__all__ = ["Convolutional"]

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Convolutional(Workload):
    """Convolutions of 3 x 3, ``conv0/W`` and so on, each with ReLU and a pooling of 2 x 2, then ``fc``.

    Images and kernels have their channels last, and the dense layer sees an image in that order.

    Parameters
    ----------
    size : int
        Height and width of the images.
    channels : tuple of int
        Of the images, and of what each convolution gives.
    """

    size: int
    channels: tuple[int, ...]

    @property
    def shown(self) -> str:
        channels = "-".join(map(str, self.channels))
        return f"{self.size}x{self.size}, channels {channels}, batch {self.batch}"

    @property
    def layers(self) -> range:
        """The numbers of the convolutions."""
        return range(len(self.channels) - 1)

    @property
    def pooled(self) -> int:
        """Height and width behind the last pooling."""
        return self.size // 2 ** len(self.layers)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        shape = (self.batch, self.size, self.size, self.channels[0])
        return rng.standard_normal(shape, "float32"), rng.integers(0, CLASSES, self.batch)

    def weights(self) -> Arrays:
        rng = np.random.default_rng(1)
        weights = {}
        for k in self.layers:
            weights[f"conv{k}/W"] = scaled(rng, 3, 3, self.channels[k], self.channels[k + 1])
            weights[f"conv{k}/b"] = np.zeros(self.channels[k + 1], "float32")
        weights["fc/W"] = scaled(rng, self.pooled**2 * self.channels[-1], CLASSES)
        weights["fc/b"] = np.zeros(CLASSES, "float32")
        return weights

    def gradients(self, weights: Arrays, features: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
        inputs, taps = [features], []
        for k in self.layers:
            output = np.maximum(_convolve(inputs[-1], weights[f"conv{k}/W"]) + weights[f"conv{k}/b"], 0)
            windows = _windows(output)
            taps.append(windows.argmax(axis=-1)[..., None])
            inputs.append(np.take_along_axis(windows, taps[-1], -1)[..., 0])
        flat = inputs[-1].reshape(len(features), -1)
        loss, error = entropy(flat @ weights["fc/W"] + weights["fc/b"], labels)
        gradients = {"fc/W": flat.T @ error, "fc/b": error.sum(axis=0)}
        error = (error @ weights["fc/W"].T).reshape(inputs[-1].shape)
        for k in reversed(self.layers):
            # A maximum that is not positive is one that ReLU made 0.
            error = np.where(inputs[k + 1] > 0, error, 0)
            spread = np.zeros((*error.shape, 4), error.dtype)
            np.put_along_axis(spread, taps[k], error[..., None], -1)
            error = _image(spread)
            gradients[f"conv{k}/W"] = np.einsum(
                "bhwcij,bhwo->ijco", _patches(inputs[k]), error, optimize=True
            )
            gradients[f"conv{k}/b"] = error.sum(axis=(0, 1, 2))
            error = _convolve(error, weights[f"conv{k}/W"][::-1, ::-1].swapaxes(2, 3))
        return loss, gradients


def _patches(images: np.ndarray) -> np.ndarray:
    """Give the 3 x 3 neighbours of each pixel, zeros around the image, as the last two axes."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))


def _convolve(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.einsum("bhwcij,ijco->bhwo", _patches(images), kernel, optimize=True)


def _windows(images: np.ndarray) -> np.ndarray:
    """Give windows of 2 x 2 as the last axis."""
    n, height, width, channels = images.shape
    split = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    return split.transpose(0, 1, 3, 5, 2, 4).reshape(n, height // 2, width // 2, channels, 4)


def _image(windows: np.ndarray) -> np.ndarray:
    """Undo :func:`_windows`."""
    n, height, width, channels, _ = windows.shape
    split = windows.reshape(n, height, width, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, 2 * height, 2 * width, channels)
