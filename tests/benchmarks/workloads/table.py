"""What is measured, by name: the networks, those that grow, and the sizes of updates alone."""

from __future__ import annotations

from tests.benchmarks.workloads.base import Workload
from tests.benchmarks.workloads.convolutional import Convolutional
from tests.benchmarks.workloads.dense import Dense
from tests.benchmarks.workloads.recurrent import Recurrent
from tests.benchmarks.workloads.transformer import Transformer

__all__ = ["GROWTH", "LEAF", "SIZES", "WORKLOADS"]

#: The shape of each leaf whose updates measure the overhead of a call.
LEAF = (8,)

_SMALL = (64, 128, 128, 10)

#: By the names that the command line takes.
WORKLOADS: dict[str, Workload] = {
    "small": Dense(title="MLP small", widths=_SMALL, batch=64),
    "large": Dense(title="MLP large", widths=(784, 1024, 1024, 10), batch=256),
    "norm": Dense(
        title="MLP small, batch norm, dropout 0.1", widths=_SMALL, batch=64, norm=True, dropout=0.1
    ),
    "deep": Dense(title="MLP deep", widths=(64, *[128] * 64, 10), batch=64, gain=1.5),
    "cnn": Convolutional(title="CNN", size=28, channels=(1, 16, 32), batch=64),
    "lstm": Recurrent(title="LSTM", length=32, n_in=32, n_hidden=64, batch=32),
    "transformer": Transformer(
        title="Transformer block", length=64, width=128, heads=4, hidden=512, vocabulary=1000, batch=16
    ),
    # These say nothing about speed; the tests run them to see that all of this works.
    "tiny": Dense(title="MLP tiny", widths=(8, 16, 16, 4), batch=8, default=False),
    "tiny-cnn": Convolutional(title="CNN tiny", size=8, channels=(1, 4, 6), batch=8, default=False),
    "tiny-lstm": Recurrent(title="LSTM tiny", length=5, n_in=3, n_hidden=8, batch=8, default=False),
    "tiny-transformer": Transformer(
        title="Transformer tiny", length=6, width=8, heads=2, hidden=16, vocabulary=12, batch=4, default=False
    ),
}


def _dense(axis: str, depth: int = 4, width: int = 128, batch: int = 64) -> Workload:
    widths = (64, *[width] * depth, 10)
    return Dense(title=f"growth in {axis}", widths=widths, batch=batch, gain=1.5, default=False)


def _cnn(axis: str, channels: int = 16, batch: int = 16) -> Workload:
    sizes = (1, channels, channels)
    return Convolutional(title=f"growth in {axis}", size=28, channels=sizes, batch=batch, default=False)


def _lstm(axis: str, length: int) -> Workload:
    title = f"growth in {axis}"
    return Recurrent(title=title, length=length, n_in=32, n_hidden=64, batch=32, default=False)


def _attention(axis: str, length: int) -> Workload:
    # Little beside the attention, so that its growth is what shows.
    return Transformer(
        title=f"growth in {axis}",
        length=length,
        width=64,
        heads=4,
        hidden=64,
        vocabulary=64,
        batch=2,
        default=False,
    )


_GROWING: dict[str, dict[int, Workload]] = {
    "depth": {size: _dense("depth", depth=size) for size in (4, 16, 64)},
    "width": {size: _dense("width", width=size) for size in (64, 256, 1024)},
    "batch": {size: _dense("batch", batch=size) for size in (64, 256, 1024)},
    "cnn-channels": {size: _cnn("channels of a CNN", channels=size) for size in (8, 32, 128)},
    "cnn-batch": {size: _cnn("batch of a CNN", batch=size) for size in (16, 64, 256)},
    "lstm-length": {size: _lstm("length of an LSTM", size) for size in (32, 128, 512)},
    "attention-length": {size: _attention("length of attention", size) for size in (64, 256, 1024)},
}

#: By what grows: its sizes, each with the name of the workload that has it.
GROWTH = {axis: {size: f"{axis}-{size}" for size in sizes} for axis, sizes in _GROWING.items()}
WORKLOADS |= {
    f"{axis}-{size}": network for axis, sizes in _GROWING.items() for size, network in sizes.items()
}

#: What updates alone are measured on, by name: how many arrays, and their shape.
SIZES = {
    "10": (10, (64, 64)),
    "100": (100, (64, 64)),
    "500": (500, (64, 64)),
    "2 of 8M": (2, (2048, 4096)),
    # For the tests.
    "3 tiny": (3, (4, 4)),
}
