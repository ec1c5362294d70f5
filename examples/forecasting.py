"""Train an LSTM to forecast the Lorenz system, a chaotic one, half a unit of time ahead from one coordinate.

    python examples/forecasting.py --backend jax --epochs 20

It is compared with two naive forecasts: that the value stays what it is, and the best linear function of the
last values. The test series is fed in pieces, and each starts from the state that the one before ended with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytensor
import pytensor.tensor as pt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from scipy.integrate import solve_ivp

import ptml
from ptml.layers import LSTM, Input, Linear
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: The error of the LSTM's forecast may be this part of the better naive one's.
WANTED_RATIO = 0.3
TIME_STEP = 0.05
AHEAD = 10
WINDOW = 64
BATCH_SIZE = 32

# Data and parameters are float32; set before the network is built.
pytensor.config.floatX = "float32"

console = Console(highlight=False)


def lorenz(n: int) -> np.ndarray:
    """Give the first coordinate of the Lorenz system at n times, standardized."""

    def slopes(_: float, state: np.ndarray) -> list[float]:
        x, y, z = state
        return [10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z]

    skipped = 200  # until it is near its attractor
    times = TIME_STEP * np.arange(n + skipped)
    solution = solve_ivp(slopes, (0, times[-1]), [1.0, 1.0, 1.0], t_eval=times, rtol=1e-8, atol=1e-8)
    x = solution.y[0, skipped:]
    return ((x - x.mean()) / x.std()).astype("float32")


def windows(series: np.ndarray, rng: np.random.Generator, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give batches of windows at random places: the values of each step, and those that much later."""
    for _ in range(n):
        starts = rng.integers(0, len(series) - WINDOW - AHEAD, BATCH_SIZE)
        at = starts[:, None] + np.arange(WINDOW)
        yield series[at][..., None], series[at + AHEAD][..., None]


def linear_forecast(training: np.ndarray, series: np.ndarray, n_lags: int = 16) -> np.ndarray:
    """Forecast each value of a series, from the first that has all lags before it, by least squares."""

    def lagged(values: np.ndarray) -> np.ndarray:
        past = np.lib.stride_tricks.sliding_window_view(values[:-AHEAD], n_lags)
        return np.column_stack([past, np.ones(len(past))])

    weights, *_ = np.linalg.lstsq(lagged(training), training[n_lags - 1 + AHEAD :], rcond=None)
    return lagged(series) @ weights


def rms(error: np.ndarray) -> float:
    """Give the root of the mean of squares."""
    return float(np.sqrt(np.mean(error**2)))


def plot(
    losses: list[float], series: np.ndarray, forecasts: dict[str, np.ndarray], title: str, path: Path
) -> None:
    """Draw the loss by epoch, a part of the series with its forecasts, and their errors."""
    figure = plt.figure(figsize=(11, 5), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 3)
    axes = figure.add_subplot(grid[:, 0])
    axes.plot(np.arange(1, len(losses) + 1), losses)
    axes.set(xlabel="epoch", ylabel="squared error, mean of the epoch", yscale="log")
    above = figure.add_subplot(grid[0, 1:])
    below = figure.add_subplot(grid[1, 1:], sharex=above)
    shown = slice(0, 400)
    times = TIME_STEP * np.arange(len(series))[shown]
    above.plot(times, series[shown], color="black", linewidth=1.5, label="what came", zorder=2)
    colours = {"LSTM": "C0", "stays what it is": "0.7", "linear": "C1"}
    for name, forecast in forecasts.items():
        order = 3 if name == "LSTM" else 1
        above.plot(times, forecast[shown], color=colours[name], linewidth=1, zorder=order)
        below.plot(times, (forecast - series)[shown], color=colours[name], linewidth=1, label=name)
    above.set(ylabel=f"x, forecast {AHEAD * TIME_STEP:g} ahead")
    below.set(xlabel="time", ylabel="error")
    for one in (axes, above, below):
        one.spines[["top", "right"]].set_visible(False)
    lines = [above.lines[0], *below.lines]
    figure.legend(handles=lines, loc="outside lower right", frameon=False, ncols=len(lines), fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("numba", "c", "jax", "mlx"), default="numba")
    parser.add_argument("--epochs", type=int, default=25, help="of 40 batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="a folder")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    series = lorenz(8000)
    training, test = series[:6000], series[6000:]
    rng = np.random.default_rng(options.seed)

    # The network forecasts at every step, so that each window gives as many examples as it has steps.
    lstm, fc = LSTM("lstm", n_in=1, n_hidden=48), Linear("fc", n_in=48, n_out=1)
    X = Input("X", shape=(None, None, 1))
    loss, _ = supervised_loss(fc(lstm(X)), SquaredError())
    per_epoch = 40
    rule = chain(clip_by_global_norm(1.0), adam(cosine_schedule(1e-2, options.epochs * per_epoch)))
    console.print(f"compiling for {options.backend}, here and in the first step …", soft_wrap=True)
    step = compile_train(loss, rule, seed=options.seed, backend=options.backend)

    losses: list[float] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for epoch in progress.track(range(1, options.epochs + 1)):
            epoch_losses = [float(step(x, y)) for x, y in windows(training, rng, per_epoch)]
            losses.append(float(np.mean(epoch_losses)))
            if epoch % 5 == 0 or epoch == 1:
                console.print(f"epoch {epoch:3d}   training {losses[-1]:.5f}")

    timings = step.timings
    console.print(
        f"compile {timings.compile:.1f} s, first call {timings.first_call:.2f} s, "
        f"then {1e3 * (timings.mean_call or 0.0):.2f} ms a call"
    )

    # In use, values come in pieces, and the state is carried from one to the next.
    h, c = pt.matrix("h"), pt.matrix("c")
    Y, state = lstm(X, (h, c), return_state=True)
    forecast = ptml.compile_predict([fc(Y), *state], inputs=[X, h, c], state=step, backend=options.backend)
    carried = [np.zeros((1, 48), "float32")] * 2
    pieces = []
    for piece in test.reshape(-1, 250):
        y, *carried = forecast(piece[None, :, None], *carried)
        pieces.append(np.asarray(y)[0, :, 0])
    first = WINDOW  # by then the state knows where the system is
    truth = test[first + AHEAD :]
    forecasts = {
        "LSTM": np.concatenate(pieces)[first:-AHEAD],
        "stays what it is": test[first:-AHEAD],
        "linear": linear_forecast(training, test)[-len(truth) :],
    }
    errors = {name: rms(values - truth) for name, values in forecasts.items()}
    ratio = errors["LSTM"] / min(errors["stays what it is"], errors["linear"])

    for name, error in errors.items():
        console.print(f"root mean square error {error:.4f}   {name}")
    title = f"Lorenz on {options.backend}: the LSTM's error is {ratio:.0%} of the better naive forecast's"
    options.output.mkdir(parents=True, exist_ok=True)
    picture = options.output / "forecasting.png"
    plot(losses, truth, forecasts, title, picture)
    console.print(f"error relative to the better naive forecast {ratio:.3f} ({len(truth)} forecasts)")
    console.print(f"plot {picture}", soft_wrap=True)
    if ratio > WANTED_RATIO:
        console.print(f"above {WANTED_RATIO}: the network has not learned what it should")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
