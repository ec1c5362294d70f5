"""Sampling: texts, or other sequences of numbers, drawn from what a decoder says comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ptml.generation.decoder import Decoder

__all__ = ["generate", "stream"]

BAD_NUMBER = "generate: {what} must be {wants}; got {value!r}."
BAD_PROMPT = (
    "generate takes a prompt of integer ids, (time,) or (batch, time) with batch={batch}, or a list of "
    "{batch} sequences, none of them empty; got {given}."
)
TOO_LONG = (
    "generate: a prompt of {prompt} and {n} more take {needed} positions, {filled} are filled, and the "
    "decoder holds {length}. Write compile_decode(..., length={total}), or less."
)
WRONG_LOGITS = "generate takes a decoder that gives logits, (batch, time, classes); this one gives {given}."
NO_NUMBER = "generate: the logits of example {row} are {what}: there is nothing to draw from."


def generate(
    decoder: Decoder,
    prompt: Any,
    n: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    others: Sequence[Any] = (),
    go_on: bool = False,
) -> np.ndarray:
    """Draw what comes after a prompt, one id after the other.

    Parameters
    ----------
    decoder : Decoder
        It gives logits, ``(batch, time, classes)``.
    prompt : integers, (time,) or (batch, time), or a list of sequences
        What is there already. A single one is that of all examples; the sequences of a list may be of
        different lengths.
    n : int
        How many ids are drawn for each example.
    temperature : float
        What logits are divided by; 1 unless given. At 0 the likeliest id is taken.
    top_k : int, optional
        Draws from the likeliest `top_k` ids alone.
    top_p : float, optional
        Draws from the likeliest ids alone that together have this probability, in ``(0, 1]``.
    seed : int
        Decides the draws; 0 unless given. Each example has draws of its own, which do not depend on the
        others, and are the same on every backend.
    others : sequence of array-like
        The decoder's other inputs, such as what it attends to.
    go_on : bool
        Whether the prompt comes after what the decoder holds already; it is reset first unless this is given.

    Returns
    -------
    array, int64, (batch, n)
        What was drawn, without the prompt. The decoder holds all of it but the last.

    Raises
    ------
    ValueError
        If the decoder cannot hold so much, which is found before anything is computed, or an argument is
        impossible.

    References
    ----------
    `top_k`: Fan, Lewis and Dauphin, "Hierarchical neural story generation" (2018). `top_p`: Holtzman and
    others, "The curious case of neural text degeneration" (2020).

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Embedding, Linear, Sequential, TransformerBlock
    >>> net = Sequential(
    ...     Embedding("tokens", n_embeddings=10, n_features=8),
    ...     TransformerBlock("block", d_model=8, n_head=2, is_causal=True, alibi=True),
    ...     Linear("head", n_in=8, n_out=10),
    ... )
    >>> decoder = ptml.compile_decode(net, batch=2, length=32, state=ptml.init(net, seed=0))
    >>> drawn = ptml.generate(decoder, [[1, 2, 3], [4]], 5, temperature=0.8, top_k=4, seed=1)
    >>> drawn.shape
    (2, 5)
    """
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    drawn = stream(decoder, prompt, n, **options, others=others, go_on=go_on)  # type: ignore[arg-type]
    return np.stack(list(drawn), axis=1) if n else np.empty((decoder.batch, 0), np.int64)


def stream(
    decoder: Decoder,
    prompt: Any,
    n: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    others: Sequence[Any] = (),
    go_on: bool = False,
) -> Iterator[np.ndarray]:
    """Draw as :func:`generate` does, and give the ids of all examples, ``(batch,)``, as they are drawn.

    Whoever has seen enough stops asking. Arguments and errors are those of `generate`.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import CausalSelfAttention, Embedding, Lambda, Sequential
    >>> tokens = Embedding("tokens", n_embeddings=10, n_features=8)
    >>> net = Sequential(tokens, CausalSelfAttention("attn", n_embd=8, n_head=2), Lambda(tokens.attend))
    >>> decoder = ptml.compile_decode(net, length=32, state=ptml.init(net, seed=0))
    >>> for ids in ptml.generation.stream(decoder, [1, 2, 3], 20):
    ...     if ids[0] == 7:
    ...         break
    """
    _check_numbers(n, temperature, top_k, top_p)
    rows = _rows(decoder.batch, prompt)
    if not go_on:
        decoder.reset()
    filled = decoder.position
    lengths = np.array([len(row) for row in rows])
    longest, most = int(lengths.max()), int((filled + lengths).max())
    # What is drawn last goes into no cache; shorter prompts are filled up to the longest for a moment.
    needed = max(most + n - 1, int(filled.max()) + longest)
    if needed > decoder.length:
        raise ValueError(
            TOO_LONG.format(
                prompt=longest,
                n=n,
                needed=longest + max(n - 1, 0),
                filled=int(filled.max()),
                length=decoder.length,
                total=needed,
            )
        )
    return _drawn(decoder, rows, n, _Draw(temperature, top_k, top_p, seed, decoder.batch), tuple(others))


def _drawn(
    decoder: Decoder, rows: list[np.ndarray], n: int, draw: _Draw, others: tuple[Any, ...]
) -> Iterator[np.ndarray]:
    if not n:
        return
    lengths = np.array([len(row) for row in rows])
    filled, longest = decoder.position, int(lengths.max())
    prompt = np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])
    logits = _logits(decoder, prompt, others)
    if (lengths < longest).any():  # what was filled up is written over
        decoder.rewind(filled + lengths)
    ids = draw(logits[np.arange(decoder.batch), lengths - 1])
    yield ids
    for _ in range(n - 1):
        ids = draw(_logits(decoder, ids[:, None], others)[:, -1])
        yield ids


def _logits(decoder: Decoder, ids: np.ndarray, others: tuple[Any, ...]) -> np.ndarray:
    logits = decoder(ids.astype(decoder.program.inputs[0].type.dtype), *others)
    if not isinstance(logits, np.ndarray) or logits.ndim != 3:
        given = getattr(logits, "shape", None) or f"{len(logits)} outputs"
        raise ValueError(WRONG_LOGITS.format(given=given))
    return logits


class _Draw:
    """Draws an id for each example from its logits."""

    def __init__(
        self, temperature: float, top_k: int | None, top_p: float | None, seed: int, batch: int
    ) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.streams = [np.random.Generator(np.random.Philox(key=[seed, row])) for row in range(batch)]

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        logits = logits.astype(np.float64)
        for row, one in enumerate(logits):
            if np.isnan(one).any() or not one.size or one.max() == -np.inf:
                raise ValueError(NO_NUMBER.format(row=row, what="NaN" if np.isnan(one).any() else "all -inf"))
        if self.temperature == 0:
            return logits.argmax(axis=-1).astype(np.int64)
        pairs = zip(logits, self.streams, strict=True)
        return np.array([self._one(one, stream) for one, stream in pairs], np.int64)

    def _one(self, logits: np.ndarray, stream: np.random.Generator) -> int:
        order = np.argsort(-logits, kind="stable")
        if self.top_k is not None:
            order = order[: self.top_k]
        likely = logits[order]
        # Also where the likeliest is infinite: then no other can be drawn.
        below = np.subtract(likely, likely[0], out=np.zeros_like(likely), where=likely != likely[0])
        weights = np.exp(below / self.temperature)
        upto = np.cumsum(weights)
        if self.top_p is not None:
            # The fewest that reach it; the last of them is the first to reach it.
            kept = int(np.searchsorted(upto, self.top_p * upto[-1])) + 1
            upto = upto[:kept]
        chosen = int(np.searchsorted(upto, stream.random() * upto[-1], side="right"))
        return int(order[min(chosen, len(upto) - 1)])


def _rows(batch: int, prompt: Any) -> list[np.ndarray]:
    """Give a prompt as one sequence of ids for each example."""
    try:
        array = np.asarray(prompt)
    except ValueError:  # sequences of different lengths
        array = np.empty(0, object)
    if array.dtype == object:
        rows = [np.asarray(row) for row in prompt]
    elif array.ndim == 1:
        rows = [array] * batch
    else:
        rows = list(array)
    good = all(row.ndim == 1 and row.size and row.dtype.kind in "iu" for row in rows)
    if len(rows) != batch or not good:
        given = f"shape {array.shape}, {array.dtype}" if array.dtype != object else f"{len(rows)} sequences"
        raise ValueError(BAD_PROMPT.format(batch=batch, given=given))
    return rows


def _check_numbers(n: Any, temperature: Any, top_k: Any, top_p: Any) -> None:
    def whole(value: Any, least: int) -> bool:
        return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    checks = [
        ("n", "a whole number", n, whole(n, 0)),
        ("temperature", "a number of 0 or more", temperature, number(temperature) and temperature >= 0),
        ("top_k", "a positive integer or None", top_k, top_k is None or whole(top_k, 1)),
        ("top_p", "a number in (0, 1] or None", top_p, top_p is None or (number(top_p) and 0 < top_p <= 1)),
    ]
    for what, wants, value, good in checks:
        if not good:
            raise ValueError(BAD_NUMBER.format(what=what, wants=wants, value=value))
