"""Train a convolutional network on scikit-learn's digits, and show its kernels and where it is least sure.

    python examples/convolution.py --backend jax --epochs 20

Each image is moved by up to one pixel, anew in every epoch: the network is to learn strokes, not pixels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytensor
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ptml
from ptml.activations import ReLU
from ptml.data import DataLoader
from ptml.layers import BatchNorm, Conv2D, Dropout, Flatten, Input, Linear, MaxPool2D, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, compile_train, cosine_schedule

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WANTED_ACCURACY = 0.985
BATCH_SIZE = 64

# Data and parameters are float32; set before the network is built.
pytensor.config.floatX = "float32"

console = Console(highlight=False)


def digits(seed: int) -> list[np.ndarray]:
    """Give training and test images, ``(n, 8, 8, 1)``, then their labels."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32").reshape(-1, 8, 8, 1)
    return train_test_split(X, y, test_size=0.2, stratify=y, random_state=seed)


def moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each image by -1, 0 or 1 pixel down and across; zeros come in at the edges."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    down, across = rng.integers(0, 3, (2, len(images), 1, 1))
    numbers = np.arange(len(images))[:, None, None]
    rows, columns = np.arange(8)[:, None] + down, np.arange(8) + across
    return padded[numbers, rows, columns]


def network() -> Sequential:
    """Describe the network; channels are last, and a kernel is ``(3, 3, in, out)``."""
    return Sequential(
        Conv2D("conv1", in_channels=1, out_channels=16, kernel_size=3, padding="same", bias=False),
        BatchNorm("bn1", n_in=16),
        ReLU(),
        Conv2D("conv2", in_channels=16, out_channels=32, kernel_size=3, padding="same", bias=False),
        BatchNorm("bn2", n_in=32),
        ReLU(),
        MaxPool2D(kernel_size=2),
        Conv2D("conv3", in_channels=32, out_channels=64, kernel_size=3, padding="same"),
        ReLU(),
        MaxPool2D(kernel_size=2),
        Flatten(),
        Dropout("drop", p=0.3),
        Linear("fc", n_in=2 * 2 * 64, n_out=10),
    )


def plot(losses: list[float], kernels: np.ndarray, unsure: list[tuple], title: str, path: Path) -> None:
    """Draw the loss by epoch, the first layer's kernels, and the images that are least sure."""
    figure = plt.figure(figsize=(11, 4), layout="constrained")
    figure.suptitle(title)
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.3, 1, 1))
    axes = left.subplots()
    axes.plot(np.arange(1, len(losses) + 1), losses)
    axes.set(xlabel="epoch", ylabel="cross entropy, mean of the epoch", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)

    middle.suptitle("kernels of conv1", fontsize=10)
    limit = np.abs(kernels).max()
    for k, axes in enumerate(middle.subplots(4, 4).flat):
        axes.imshow(kernels[:, :, 0, k], cmap="RdBu", vmin=-limit, vmax=limit)
        axes.axis("off")

    right.suptitle("least sure: digit → read as", fontsize=10)
    for axes, (image, digit, read) in zip(right.subplots(2, 3).flat, unsure, strict=True):
        axes.imshow(image, cmap="gray_r")
        axes.set_title(f"{digit} → {read}", fontsize=10, color="black" if digit == read else "C3")
        axes.axis("off")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("numba", "c", "jax", "mlx"), default="numba")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="a folder")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    X_train, X_test, y_train, y_test = digits(options.seed)
    loader = DataLoader(
        X_train, y_train, batch_size=BATCH_SIZE, shuffle=True, seed=options.seed, drop_last=True
    )
    rng = np.random.default_rng(options.seed)

    logits = network()(Input("X", shape=(None, 8, 8, 1)))
    loss, _ = supervised_loss(logits, CrossEntropy(expect_logits=True))
    n_steps = options.epochs * (len(X_train) // BATCH_SIZE)
    rule = adam(cosine_schedule(5e-3, n_steps))
    console.print(f"compiling for {options.backend}, here and in the first step …", soft_wrap=True)
    step = compile_train(loss, rule, seed=options.seed, backend=options.backend)

    losses: list[float] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for epoch in progress.track(range(1, options.epochs + 1)):
            epoch_losses = [float(step(moved(X_batch, rng), y_batch)) for X_batch, y_batch in loader]
            losses.append(float(np.mean(epoch_losses)))
            if epoch % 10 == 0 or epoch == 1:
                console.print(f"epoch {epoch:3d}   training {losses[-1]:.4f}")

    timings = step.timings
    console.print(
        f"compile {timings.compile:.1f} s, first call {timings.first_call:.2f} s, "
        f"then {1e3 * (timings.mean_call or 0.0):.2f} ms a call"
    )

    # Without dropout, and with the running averages of batch norm, over the state of `step`.
    predict = ptml.compile_predict(logits, state=step, backend=options.backend)
    scores = predict(X_test)
    predicted = scores.argmax(axis=1)
    accuracy = float(np.mean(predicted == y_test))
    best_two = np.sort(scores, axis=1)[:, -2:]
    rows = np.argsort(best_two[:, 1] - best_two[:, 0])[:6]
    unsure = [(X_test[row, :, :, 0], y_test[row], predicted[row]) for row in rows]
    title = f"digits on {options.backend}: {accuracy:.1%} of {len(y_test)} held-out images are right"
    options.output.mkdir(parents=True, exist_ok=True)
    picture = options.output / "convolution.png"
    plot(losses, step.state["conv1/W"], unsure, title, picture)
    console.print(f"held-out accuracy {accuracy:.4f} ({len(y_test)} images)")
    console.print(f"plot {picture}", soft_wrap=True)
    if accuracy < WANTED_ACCURACY:
        console.print(f"below {WANTED_ACCURACY}: the network has not learned what it should")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
