"""Train a classifier on scikit-learn's digits, look into its state, save it, and predict from the file.

    python examples/digits.py --backend jax --epochs 20

The first Ctrl-C ends the training after the current step and goes on with what there is.
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
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

import ptml
from ptml.activations import ReLU
from ptml.data import DataLoader
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml.training.interrupts import asked_to_stop
from ptml_state import load_state, save_state

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WANTED_ACCURACY = 0.97
BATCH_SIZE = 64

# Data and parameters are float32; set before the network is built.
pytensor.config.floatX = "float32"

console = Console(highlight=False)


def digits(seed: int) -> list[np.ndarray]:
    """Give training, validation and test rows: X of each, then y of each."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    X_rest, X_test, y_rest, y_test = train_test_split(X, y, test_size=0.2, stratify=y, random_state=seed)
    split = train_test_split(X_rest, y_rest, test_size=0.15, stratify=y_rest, random_state=seed)
    X_train, X_valid, y_train, y_valid = split
    return [X_train, X_valid, X_test, y_train, y_valid, y_test]


def network() -> Sequential:
    return Sequential(
        Linear("fc1", n_in=64, n_out=128),
        BatchNorm("bn1", n_in=128),
        ReLU(),
        Dropout("drop1", p=0.2),
        Linear("fc2", n_in=128, n_out=128),
        BatchNorm("bn2", n_in=128),
        ReLU(),
        Dropout("drop2", p=0.2),
        Linear("fc3", n_in=128, n_out=10),
    )


def plot(
    epoch_losses: list[list[float]], valid_losses: list[float], counts: np.ndarray, title: str, path: Path
) -> None:
    """Draw the loss by epoch and the confusion matrix."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    figure.suptitle(title)
    per_epoch = len(epoch_losses[0])
    losses = np.concatenate(epoch_losses)
    left.plot(np.arange(1, len(losses) + 1) / per_epoch, losses, color="0.75", linewidth=0.8, label="batch")
    epochs = np.arange(1, len(epoch_losses) + 1)
    means = [np.mean(part) for part in epoch_losses]
    left.plot(epochs, means, color="C0", label="training, mean of the epoch")
    left.plot(epochs, valid_losses, color="C1", label="validation")
    left.set(xlabel="epoch", ylabel="cross entropy", yscale="log", xlim=(0, None))
    left.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)

    right.imshow(np.where(counts > 0, counts, np.nan), cmap="Blues", vmin=0, vmax=counts.max())
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if count > counts.max() / 2 else "black"
            right.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=9)
    right.set(xlabel="predicted digit", ylabel="digit", xticks=range(10), yticks=range(10))
    right.tick_params(length=0)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("numba", "c", "jax", "mlx"), default="numba")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="a folder")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    X_train, X_valid, X_test, y_train, y_valid, y_test = digits(options.seed)
    loader = DataLoader(
        X_train, y_train, batch_size=BATCH_SIZE, shuffle=True, seed=options.seed, drop_last=True
    )

    # The model is a value, and calling it builds a graph: nothing is allocated, drawn or computed here.
    net = network()
    X = Input("X", shape=(None, 64))
    logits = net(X)
    loss, _ = supervised_loss(logits, CrossEntropy(expect_logits=True))
    n_steps = options.epochs * (len(X_train) // BATCH_SIZE)
    rule = chain(clip_by_global_norm(1.0), adam(cosine_schedule(3e-3, n_steps)))

    console.print(f"compiling for {options.backend}, here and in the first step …", soft_wrap=True)
    step = compile_train(loss, rule, seed=options.seed, backend=options.backend)
    # Over the store of `step`: it sees every step that is made, and nothing is copied.
    validate = ptml.compile_predict(loss, state=step, backend=options.backend)

    epoch_losses: list[list[float]] = []
    valid_losses: list[float] = []
    best, best_loss = step.state, np.inf
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with asked_to_stop() as stop, Progress(*columns, console=console, transient=True) as progress:
        for epoch in progress.track(range(1, options.epochs + 1)):
            epoch_losses.append([])
            for X_batch, y_batch in loader:
                epoch_losses[-1].append(float(step(X_batch, y_batch)))
                if stop():
                    break
            valid_losses.append(float(validate(X_valid, y_valid)))
            if valid_losses[-1] < best_loss:
                best, best_loss = step.state, valid_losses[-1]
            if epoch % 10 == 0 or epoch == 1:
                train, valid = np.mean(epoch_losses[-1]), valid_losses[-1]
                console.print(f"epoch {epoch:3d}   training {train:.4f}   validation {valid:.4f}")
            if stop():
                console.print(f"stopped in epoch {epoch}")
                break

    console.print(step.state)
    timings = step.timings
    console.print(
        f"\ncompile {timings.compile:.1f} s, first call {timings.first_call:.2f} s, "
        f"then {1e3 * (timings.mean_call or 0.0):.2f} ms a call"
    )

    # What was best on the validation rows, to a file and back, as another program would read it.
    archive = options.output / "digits.safetensors"
    options.output.mkdir(parents=True, exist_ok=True)
    save_state(best, archive)
    predict = ptml.compile_predict(logits, state=load_state(archive), backend=options.backend)
    predicted = predict(X_test).argmax(axis=1)
    accuracy = float(np.mean(predicted == y_test))

    title = f"digits on {options.backend}: {accuracy:.1%} of {len(y_test)} held-out rows are right"
    picture = options.output / "digits.png"
    plot(epoch_losses, valid_losses, confusion_matrix(y_test, predicted, labels=range(10)), title, picture)
    console.print(f"held-out accuracy {accuracy:.4f} ({len(y_test)} rows)")
    console.print(f"state {archive}\nplot  {picture}", soft_wrap=True)
    if accuracy < WANTED_ACCURACY:
        console.print(f"below {WANTED_ACCURACY}: the network has not learned what it should")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
