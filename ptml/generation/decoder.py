"""Programs that take a sequence piece by piece, and remember what attention needs of the pieces before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from ptml.compile.function import build
from ptml.compile.program import Program
from ptml.decoding import Decoding, decoding
from ptml.flatten import calls_in
from ptml.layers.convolution import Conv1D, Conv2D, Conv3D
from ptml.layers.feature_norm import GroupNorm, InstanceNorm
from ptml.layers.input import Input
from ptml.layers.recurrent_ends import LastStep
from ptml.layers.shape import Flatten
from ptml.layers.spatial import Spatial
from ptml.layers.transposed_convolution import ConvTranspose1D, ConvTranspose2D, ConvTranspose3D
from ptml.module import Module
from ptml.network import _Naming, walk
from ptml.validate import described
from ptml_state import Role, Slot, State, Store

__all__ = ["Decoder", "compile_decode"]

BAD_SIZE = "compile_decode: {what} must be a positive integer; got {value!r}."
NOT_CALLABLE = "compile_decode takes a network, which it calls on the inputs itself; got {given!r}.{hint}"
A_GRAPH = " Write compile_decode(net, ...), not compile_decode(net(ids), ...)."
WRONG_INPUT = (
    "compile_decode: the first input must have axes (batch, time, ...) with batch={batch}; got {name} of "
    "shape {shape}. Write Input({name!r}, shape=({batch}, None), dtype='int64') for ids."
)
NO_CACHE = (
    "{network!r} has no causal self-attention, so that there is nothing to remember from one piece to the "
    "next. compile_predict compiles it."
)
FORGETS = (
    "{layer} looks along the sequence in another way than attention, and would see each piece alone. What is "
    "known from the start, such as an encoder's output, goes to the decoder as an input of its own."
)
OTHER_SIZES = (
    "The store has caches of other sizes at {address!r}: {old}, where {new} are wanted. Write "
    "namespace={suggestion!r}, or the batch and length that they have."
)
FULL = "The decoder holds {length} positions, and what it is given would take more."
FULL_NOW = (
    "The decoder holds {length} positions for each example. {filled} are taken and {more} more do not fit. "
    "Write decoder.reset() to begin anew, or compile_decode(..., length={needed})."
)
BAD_POSITION = (
    "Decoder.rewind takes one position for each of the {batch} examples, or one for all, of at most what is "
    "filled, {filled}; got {given}."
)

#: What looks along a sequence and has no cache.
FORGETFUL = (
    *(Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D, Spatial),
    *(LastStep, GroupNorm, InstanceNorm, Flatten),
)


@attrs.frozen(eq=False, repr=False)
class Decoder:
    """A network that is given a sequence piece by piece; made by :func:`compile_decode`.

    A call takes the next piece, one element or several of each example, and gives what the network gives for
    that piece after all that came before.

    Attributes
    ----------
    program : Program
        What runs. Its state has the parameters, and the caches under ``Role.CACHE``.
    batch, length : int
        The number of examples, and of the positions that the caches hold for each.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Embedding, Linear, Sequential, TransformerBlock
    >>> net = Sequential(
    ...     Embedding("tokens", n_embeddings=10, n_features=8),
    ...     TransformerBlock("block", d_model=8, n_head=2, is_causal=True, alibi=True),
    ...     Linear("head", n_in=8, n_out=10),
    ... )
    >>> decoder = ptml.compile_decode(net, length=16, state=ptml.init(net, seed=0))
    >>> decoder
    <Decoder(ids: int64[1,?]) on numba, 0 of 16 positions>
    >>> first = decoder(np.array([[1, 2, 3]]))
    >>> second = decoder(np.array([[4]]))
    >>> second.shape, decoder.position
    ((1, 1, 10), array([4]))
    >>> decoder.reset()
    >>> whole = decoder(np.array([[1, 2, 3, 4]]))
    >>> np.allclose(whole, np.concatenate([first, second], axis=1))
    True
    """

    program: Program
    batch: int
    length: int
    _position: Slot
    _caches: tuple[Slot, ...]

    def __call__(self, *inputs: Any) -> Any:
        """Take the next piece.

        Parameters
        ----------
        *inputs : array-like
            As declared: ids ``(batch, time)`` unless other inputs were given to :func:`compile_decode`.

        Raises
        ------
        ValueError
            If the caches do not hold so many positions; nothing is remembered then.
        """
        try:
            return self.program(*inputs)
        except ValueError as error:
            more = np.asarray(inputs[0]).shape[1]
            filled = self.position
            if FULL.format(length=self.length) not in str(error) or int(filled.max()) + more <= self.length:
                raise
            shown = int(filled.max())
            raise ValueError(
                FULL_NOW.format(length=self.length, filled=shown, more=more, needed=shown + more)
            ) from error

    @property
    def position(self) -> np.ndarray:
        """How many positions of each example are filled, ``(batch,)``."""
        return np.array(self.store.snapshot([self._position])[self._position.address])

    @property
    def store(self) -> Store:
        """Where the state lives."""
        return self.program.store

    @property
    def state(self) -> State:
        """A snapshot of the state: the parameters and the caches."""
        return self.program.state

    def reset(self) -> None:
        """Forget all pieces."""
        self.store.set({slot.address: 0 for slot in (self._position, *self._caches)})

    def rewind(self, position: Any) -> None:
        """Forget what comes after a position.

        Parameters
        ----------
        position : int, or one for each example
            How many positions are kept.

        Raises
        ------
        ValueError
            If that is less than nothing, or more than is filled.
        """
        filled, given = self.position, np.asarray(position)
        fits = given.dtype.kind in "iu" and given.shape in ((), (self.batch,))
        if not fits or (given < 0).any() or (given > filled).any():
            raise ValueError(BAD_POSITION.format(batch=self.batch, filled=filled, given=position))
        self.store.set({self._position.address: np.broadcast_to(given, filled.shape).astype("int64")})

    def __repr__(self) -> str:
        inputs = repr(self.program).partition("(")[2].rpartition(",")[0]
        return f"<Decoder({inputs}, {int(self.position.max())} of {self.length} positions>"


def compile_decode(
    network: Callable[..., Any],
    *,
    length: int,
    batch: int = 1,
    inputs: Sequence[Variable] | None = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    namespace: str = "cache",
    compile_kwargs: Mapping[str, Any] | None = None,
) -> Decoder:
    """Compile a network for generation: causal attention keeps keys and values in caches.

    The network is called here, on inputs of a piece of the sequence, and stays as it is. As in
    :func:`ptml.compile_predict`, dropout is gone. Attention attends to what its caches hold and appends to
    them; positions (learned, sinusoidal, rotary, and the distances of `alibi`) count on. So each piece costs
    what its own length and `length` say, and nothing is computed again. The caches are slots, which a program
    moves by itself.

    Parameters
    ----------
    network : Layer, or function of tensors
        It gives for each position what depends on that position and those before.
    length : int
        How many positions the caches hold.
    batch : int
        How many sequences are decoded side by side; 1 unless given.
    inputs : sequence of Variable, optional
        What a call takes, first the sequence, of axes ``(batch, time, ...)``; the others, such as an
        encoder's output to attend to, are given with every piece. Integer ids of shape ``(batch, time)``
        unless given.
    state : State, Store or Program
        The trained state. A program's, or a store, is shared: the decoder sees every step that is made.
    seed : int, optional
        As for :func:`ptml.compile_predict`.
    backend, compile_kwargs
        As for :func:`ptml.function`.
    namespace : str
        The first part of the addresses of the caches, of which a store has one set for each namespace.

    Returns
    -------
    Decoder

    Raises
    ------
    ValueError
        If there is nothing to remember, attention is not causal, a layer looks along the sequence in another
        way (convolutions, recurrent layers, norms over positions), a table of positions is shorter than
        `length`, or the store has caches of other sizes under this namespace.
    TypeError
        If the network cannot be called.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Embedding, Linear, Sequential, TransformerBlock
    >>> net = Sequential(
    ...     Embedding("tokens", n_embeddings=10, n_features=8),
    ...     TransformerBlock("block", d_model=8, n_head=2, is_causal=True, alibi=True),
    ...     Linear("head", n_in=8, n_out=10),
    ... )
    >>> decoder = ptml.compile_decode(net, length=32, state=ptml.init(net, seed=0))
    >>> ptml.generate(decoder, [[1, 2, 3]], 4, temperature=0.0).shape
    (1, 4)
    """
    for what, value in (("length", length), ("batch", batch)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(BAD_SIZE.format(what=what, value=value))
    if not callable(network) or isinstance(network, Variable):
        hint = A_GRAPH if isinstance(network, Variable) else ""
        raise TypeError(NOT_CALLABLE.format(given=network, hint=hint))
    entries = [Input("ids", shape=(batch, None), dtype="int64")] if inputs is None else list(inputs)
    first = entries[0]
    if first.type.ndim < 2 or first.type.shape[0] != batch:
        raise ValueError(WRONG_INPUT.format(batch=batch, name=first.name or "ids", shape=first.type.shape))
    if isinstance(state, State):
        state = state.drop(Role.CACHE)
    store = state.store if isinstance(state, Program) else state
    known = {p.address: p.slot for p in store.places} if isinstance(store, Store) else {}

    naming = _Naming([network] if isinstance(network, Module) else [])
    now = Decoding(batch, length, namespace, naming.name, known)
    position = now.slot("position", "int64", (batch,))
    token = decoding.set(now)
    try:
        given = network(*entries)
    finally:
        decoding.reset(token)
    outputs = [pt.as_tensor(one) for one in given] if isinstance(given, tuple | list) else [given]
    for layer in (part for called in calls_in(outputs) for part in walk(called)):
        if isinstance(layer, FORGETFUL):
            raise ValueError(FORGETS.format(layer=described(layer)))
    if len(now.slots) == 1:
        raise ValueError(NO_CACHE.format(network=network))
    for address, slot in now.slots.items():
        if known.get(address, slot) is not slot:
            suggestion, old = f"{namespace}_2", known[address]
            raise ValueError(OTHER_SIZES.format(address=address, old=old, new=slot, suggestion=suggestion))

    more = first.shape[1]
    fits = pt.all(position + more <= length)
    behind = CheckAndRaise(ValueError, FULL.format(length=length))(position, fits)
    # Where nobody looks at the check, such as in a function that JAX traces, what does not fit is NaN.
    outputs = [
        pt.switch(fits, one, np.asarray(np.nan, one.type.dtype))
        if one.type.dtype.startswith("float")
        else one
        for one in clone_replace(outputs, {now.position: behind})
    ]
    program = build(
        entries,
        outputs if isinstance(given, tuple | list) else outputs[0],
        updates={position: _moved(behind, more)},
        state=state,
        seed=seed,
        backend=backend,
        options=dict(compile_kwargs or {}),
        training=False,
    )
    caches = tuple(slot for slot in now.slots.values() if slot is not position.slot)
    return Decoder(program, batch, length, position.slot, caches)


def _moved(position: TensorVariable, more: TensorVariable) -> TensorVariable:
    return (position + more).astype("int64")
