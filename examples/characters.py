"""Train a small language model on the documentation that comes with Python, and let it write.

    python examples/characters.py --backend jax --steps 1000

The model reads characters and says which may come next. It is held against what counting pairs of them says.
The first Ctrl-C ends the training after the current step and goes on with what there is.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytensor
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import ptml
from ptml.layers import Embedding, Input, Lambda, Sequential, TransformerEncoder
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adamw, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml.training.interrupts import asked_to_stop

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCH_SIZE = 32
PROMPT = "The "

# Data and parameters are float32; set before the network is built.
pytensor.config.floatX = "float32"

console = Console(highlight=False)


class Text:
    """A text as ids: what is trained on, and a last tenth that is held out."""

    def __init__(self) -> None:
        topics = pydoc_data.topics.topics
        whole = "\n\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(whole))
        self.number = {character: k for k, character in enumerate(self.characters)}
        ids = self.ids(whole)
        self.train, self.held_out = np.split(ids, [len(ids) * 9 // 10])

    def ids(self, text: str) -> np.ndarray:
        return np.array([self.number[character] for character in text], np.int64)

    def written(self, ids: np.ndarray) -> str:
        return "".join(self.characters[k] for k in ids)

    def baselines(self) -> tuple[float, float]:
        """Give bits per held-out character by counts of characters, and of pairs."""
        n = len(self.characters)
        pairs = np.full((n, n), 0.1)
        np.add.at(pairs, (self.train[:-1], self.train[1:]), 1)
        before, after = self.held_out[:-1], self.held_out[1:]
        single = pairs.sum(axis=0) / pairs.sum()
        following = pairs / pairs.sum(axis=1, keepdims=True)
        return float(-np.log2(single[after]).mean()), float(-np.log2(following[before, after]).mean())


def network(n_characters: int, quick: bool) -> Sequential:
    width, depth = (32, 1) if quick else (64, 3)
    tokens = Embedding("tokens", n_embeddings=n_characters, n_features=width)
    return Sequential(
        tokens,
        # Scores that fall with the distance let it write texts longer than any it was trained on.
        TransformerEncoder(
            "trunk", n_layer=depth, d_model=width, n_head=4, is_causal=True, alibi=True, bias=False
        ),
        Lambda(tokens.attend, name="head"),
    )


def windows(ids: np.ndarray, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give batches of pieces of a text, and what comes next at each of their characters, without end."""
    rng = np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(ids) - length, BATCH_SIZE)[:, None] + np.arange(length)
        yield ids[at], ids[at + 1]


def plot(
    losses: list[float], by_place: np.ndarray, baselines: tuple[float, float], title: str, path: Path
) -> None:
    """Draw the loss by step, and the bits of a held-out character by how many come before it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
    figure.suptitle(title)
    n = min(len(losses), max(10, len(losses) // 50))
    smooth = np.convolve(losses, np.ones(n) / n, mode="valid")
    left.plot(np.arange(1, len(losses) + 1), losses, color="0.75", linewidth=0.8, label="batch")
    left.plot(np.arange(n, len(losses) + 1), smooth, color="C0", label=f"mean of {n}")
    left.set(xlabel="step", ylabel="bits per character")
    right.plot(np.arange(1, len(by_place) + 1), by_place, color="C0", label="held out")
    right.set(xlabel="characters that come before in the window")
    for axes in (left, right):
        for value, style, label in zip(baselines, (":", "--"), ("characters", "pairs"), strict=True):
            axes.axhline(value, color="0.4", linestyle=style, linewidth=1, label=f"counting {label}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("numba", "c", "jax", "mlx"), default="numba")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="a smaller network, and less to beat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="a folder")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    n_steps = options.steps or (150 if options.quick else 600)
    window = 32 if options.quick else 64
    text = Text()
    baselines = text.baselines()
    console.print(f"{len(text.train):,} characters to train on, {len(text.held_out):,} held out")

    # The model is a value, and calling it builds a graph: nothing is allocated, drawn or computed here.
    net = network(len(text.characters), options.quick)
    ids = Input("ids", shape=(None, window), dtype="int64")
    logits = net(ids)
    loss, target = supervised_loss(logits, CrossEntropy(expect_logits=True))
    rule = chain(clip_by_global_norm(1.0), adamw(cosine_schedule(1e-2, n_steps), weight_decay=0.01))

    console.print(f"compiling for {options.backend}, here and in the first step …", soft_wrap=True)
    step = compile_train(loss, rule, seed=options.seed, backend=options.backend)
    losses: list[float] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with asked_to_stop() as stop, Progress(*columns, console=console, transient=True) as progress:
        batches = windows(text.train, window, options.seed)
        for k in progress.track(range(1, n_steps + 1)):
            losses.append(float(step(*next(batches))) / np.log(2))
            if k % 100 == 0 or k == 1:
                console.print(f"step {k:5d}   {np.mean(losses[-100:]):.3f} bits per character")
            if stop():
                console.print(f"stopped in step {k}")
                break
    timings = step.timings
    console.print(
        f"compile {timings.compile:.1f} s, first call {timings.first_call:.2f} s, "
        f"then {1e3 * (timings.mean_call or 0.0):.1f} ms a call"
    )

    # Over the store of `step`: nothing is copied.
    each = CrossEntropy(expect_logits=True, reduction="none")(logits, target) / np.float32(np.log(2))
    bits = ptml.compile_predict(each, inputs=[ids, target], state=step, backend=options.backend)
    pieces = (len(text.held_out) - 1) // window
    X = text.held_out[: pieces * window].reshape(pieces, window)
    y = text.held_out[1 : pieces * window + 1].reshape(pieces, window)
    n = len(X) // BATCH_SIZE * BATCH_SIZE
    found = np.concatenate(
        [bits(X[k : k + BATCH_SIZE], y[k : k + BATCH_SIZE]) for k in range(0, n, BATCH_SIZE)]
    )
    result = float(found.mean())

    # Each character costs as much as one position of the network: the rest is in the caches.
    decoder = ptml.compile_decode(net, length=512, state=step, backend=options.backend)
    prompt, n = text.ids(PROMPT), 400
    ptml.generate(decoder, prompt, 2)  # backends compile in the first calls
    start = time.perf_counter()
    written = ptml.generate(decoder, prompt, n, temperature=0.7, seed=1)[0]
    seconds = time.perf_counter() - start
    console.print(f"\n{PROMPT}{text.written(written)}\n", markup=False)
    console.print(f"{1e3 * seconds / n:.2f} ms a character")

    options.output.mkdir(parents=True, exist_ok=True)
    picture = options.output / "characters.png"
    title = f"characters on {options.backend}: {result:.2f} bits per held-out character"
    plot(losses, found.mean(axis=0), baselines, title, picture)
    console.print(
        f"held out {result:.3f} bits per character; counting characters {baselines[0]:.3f}, ", end=""
    )
    console.print(f"pairs {baselines[1]:.3f}\nplot  {picture}", soft_wrap=True)
    wanted = baselines[0] if options.quick else baselines[1] - 0.5
    if result > wanted:
        console.print(f"above {wanted:.3f}: the network has not learned what it should")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
