"""Random words as tensors: the two ops under every random draw.

A generator is a leaf ``uint32[4]``: two words of key, then the number of calls made so far, low word first.
A draw is a pure function of that leaf, of the draw's own number and of the element's index, so that every
backend, and every copy of the draw that a rewrite or a gradient makes, gives the same words.

The words come from the block cipher Threefry-2x32 with 20 rounds, written ``E_key(counter)`` here:

* ``r = E_key(0, 1)``,
* ``t = E_[r xor (calls_low, number)](0, 1) xor (calls_high, 0)``, the key of the draw,
* with ``h = ceil(n / 2)``, words ``i`` and ``h + i`` of an array of ``n`` are the block ``E_t(i, h + i)``,
* the key that iteration ``data`` of a loop uses is ``E_key(0, 2) xor (data, 0)``.

Every block used on the way to a draw's key has the counter (0, 1) and every block on the way to a folded key
(0, 2), so the two never meet. Up to 2**33 words of one draw are distinct blocks.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.basic import infer_static_shape
from pytensor.tensor.type import TensorType

__all__ = [
    "DRAW_DTYPES",
    "Draw",
    "FoldIn",
    "Keyed",
    "Numbered",
    "concrete_shape",
    "draw_key",
    "folded_key",
    "key_input",
    "numbers",
    "threefry",
    "word_input",
]

DRAW_DTYPES = ("uint32", "float32", "float64")
"""What a draw can give: raw words, or numbers uniform over [0, 1)."""

MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

_BAD_DTYPE = (
    "Draw({given!r}) has no such dtype; write one of "
    + ", ".join(f"Draw({dtype!r})" for dtype in DRAW_DTYPES)
    + "."
)
_BAD_KEY = (
    "{op} takes the key as uint32[4] (two words of key, two of calls), and was given {given}. "
    "Give it a generator's leaf, or write pytensor.tensor.specify_shape(key, (4,)) if its length is unknown."
)
_BAD_WORD = (
    "{op} takes {what} as a uint32 scalar, and was given {given}. "
    "Write numpy.uint32(3) for a constant, or x.astype('uint32') for a variable."
)
_NEGATIVE_DIM = "A draw of shape {shape} was asked for; every dimension must be 0 or more."
_BATCHED = (
    "vectorize_graph gave {op} a batched {what} ({given} where {expected} stood), and a random draw has no "
    "batch axis of its own: whether its elements share one draw or have one each is not for vectorize_graph "
    "to say. Build the model on inputs that have the batch axis already, or draw outside and replace "
    "the drawn variable by one with the batch axis."
)


def threefry(key0: Any, key1: Any, counter0: Any, counter1: Any) -> tuple[Any, Any]:
    """Encrypt counters with Threefry-2x32, 20 rounds.

    Parameters
    ----------
    key0, key1
        The two words of the key, each from 0 to 2**32 - 1.
    counter0, counter1
        The two words of the counter. Each of the four may be a Python integer or an array of any library,
        of a type that holds 64 bits (or of NumPy's ``uint32``).

    Returns
    -------
    tuple
        The two words of the block, of the type and shape of the counters.

    Examples
    --------
    >>> from ptml.bits import threefry
    >>> [hex(word) for word in threefry(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)]
    ['0xc4923a9c', '0x483df7a0']
    """
    schedule = (key0, key1, key0 ^ key1 ^ PARITY)
    x0 = (counter0 + key0) & MASK
    x1 = (counter1 + key1) & MASK
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = (x0 + x1) & MASK
            x1 = ((x1 << rotation | x1 >> (32 - rotation)) & MASK) ^ x0
        x0 = (x0 + schedule[(group + 1) % 3]) & MASK
        x1 = (x1 + schedule[(group + 2) % 3] + (group + 1)) & MASK
    return x0, x1


def draw_key(leaf: Sequence[Any], number: Any) -> tuple[Any, Any]:
    """Derive the key under which the words of one draw are blocks.

    Parameters
    ----------
    leaf
        The four words of the generator: key, key, calls (low), calls (high).
    number
        The number of the draw, from 0 to 2**32 - 1.

    Examples
    --------
    >>> from ptml.bits import draw_key
    >>> draw_key((1, 2, 0, 0), 5) == draw_key((1, 2, 0, 0), 6)
    False
    """
    key0, key1, calls_low, calls_high = leaf
    root0, root1 = threefry(key0, key1, 0, 1)
    word0, word1 = threefry(root0 ^ calls_low, root1 ^ number, 0, 1)
    return word0 ^ calls_high, word1


def folded_key(leaf: Sequence[Any], data: Any) -> tuple[Any, Any]:
    """Derive the key of one iteration from that of the loop.

    Parameters
    ----------
    leaf
        The four words of the generator; only the first two are read.
    data
        The number of the iteration, from 0 to 2**32 - 1.

    Examples
    --------
    >>> from ptml.bits import folded_key
    >>> folded_key((1, 2, 0, 0), 0) == folded_key((1, 2, 0, 0), 1)
    False
    """
    word0, word1 = threefry(leaf[0], leaf[1], 0, 2)
    return word0 ^ data, word1


def concrete_shape(dims: Iterable[Any]) -> tuple[int, ...]:
    """Turn the dimensions that a kernel was given into the shape to draw.

    Parameters
    ----------
    dims
        Python integers, or 0-d integer arrays of any library.

    Raises
    ------
    ValueError
        If one is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.bits import concrete_shape
    >>> concrete_shape([np.array(2), 3])
    (2, 3)
    """
    shape = tuple(int(dim) for dim in dims)
    if any(dim < 0 for dim in shape):
        raise ValueError(_NEGATIVE_DIM.format(shape=shape))
    return shape


def _words(key: tuple[int, int], n: int) -> np.ndarray:
    # The rounds of ``threefry`` again, in place: over 65,536 words that halves the time.
    half = (n + 1) // 2
    words = np.arange(2 * half, dtype=np.uint32)
    x0, x1 = words[:half], words[half:]
    spare = np.empty_like(x0)
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x0 += np.uint32(schedule[0])
    x1 += np.uint32(schedule[1])
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 += x1
            np.right_shift(x1, 32 - rotation, out=spare)
            x1 <<= rotation
            x1 |= spare
            x1 ^= x0
        x0 += np.uint32(schedule[(group + 1) % 3])
        x1 += np.uint32((schedule[(group + 2) % 3] + group + 1) & MASK)
    return words[:n]


def numbers(leaf: Sequence[int], number: int, n: int, dtype: str) -> np.ndarray:
    """Draw in NumPy, as the kernels of every backend do.

    Parameters
    ----------
    leaf
        The four words of the generator: key, key, calls (low), calls (high).
    number
        The number of the draw, from 0 to 2**32 - 1.
    n
        How many to draw, 0 or more.
    dtype
        One of ``DRAW_DTYPES``.

    Returns
    -------
    numpy.ndarray
        A vector of length ``n``.

    Examples
    --------
    >>> from ptml.bits import numbers
    >>> numbers((1, 2, 3, 0), 0, 3, "uint32")
    array([2728438824, 2598162721, 3108514997], dtype=uint32)
    """
    key = draw_key(leaf, number)
    if dtype == "float64":
        words = _words(key, 2 * n)
        high = (words[:n] >> 5).astype(np.float64)
        low = (words[n:] >> 6).astype(np.float64)
        return (high * 2.0**26 + low) * 2.0**-53
    words = _words(key, n)
    return (words >> 8).astype(np.float32) * np.float32(2.0**-24) if dtype == "float32" else words


def word_input(op: Op, what: str, value: Any) -> Variable:
    """Give a value as a ``uint32`` scalar, or say what `op` takes it for."""
    word = pt.as_tensor(value)
    if word.type.dtype != "uint32" or word.type.ndim != 0:
        raise TypeError(_BAD_WORD.format(op=op, what=what, given=word.type))
    return word


def key_input(op: Op, value: Any) -> Variable:
    """Give a value as a generator's leaf, or say that `op` takes one."""
    key = pt.as_tensor(value)
    if key.type.dtype != "uint32" or key.type.shape != (4,):
        raise TypeError(_BAD_KEY.format(op=op, given=key.type))
    return key


def _int64_input(value: Any) -> Variable:
    dim = pt.as_tensor(value)
    if isinstance(dim, Constant):
        return pt.constant(dim.data, dtype="int64")
    return pt.cast(dim, "int64")


class Keyed(Op):
    """An op whose first input is a generator's leaf: nothing flows back through random words."""

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False] for _ in node.inputs]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [disconnected_type() for _ in inputs]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        return [disconnected_type() for _ in outputs]


class Numbered(Keyed):
    """A keyed op whose second input is the number of this use of the key within the call."""

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        # Folded, what is drawn would be stored in the program instead of drawn by it.
        return False


class Draw(Numbered):
    """Draw random words, or numbers uniform over [0, 1), as a function of a generator's leaf.

    The op is applied to ``(key, number, *shape)``: the leaf ``uint32[4]``, the number of this draw within the
    call as a ``uint32`` scalar, and one integer scalar for each dimension. Equal inputs give equal draws; it
    is by their numbers that draws differ. No gradient flows through a draw.

    Parameters
    ----------
    dtype
        ``"uint32"`` for raw words; ``"float32"`` for multiples of 2**-24, the upper 24 bits of one word
        each; ``"float64"`` for multiples of 2**-53, each from the upper 27 bits of one word and the upper 26
        of another. MLX has no ``"float64"``.

    Raises
    ------
    TypeError
        If the dtype is none of these, or when applied, if the key, the number or a dimension has another
        type.
    ValueError
        When applied, if a dimension is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.bits import Draw
    >>> leaf = np.array([1, 2, 0, 0], dtype="uint32")
    >>> Draw("float32")(leaf, np.uint32(0), 2, 3).type.shape
    (2, 3)
    """

    __props__ = ("dtype",)
    _output_type_depends_on_input_value = True

    def __init__(self, dtype: str) -> None:
        if dtype not in DRAW_DTYPES:
            raise TypeError(_BAD_DTYPE.format(given=dtype))
        self.dtype = dtype

    def make_node(self, key: Any, number: Any, *shape: Any) -> Apply:
        key = key_input(self, key)
        number = word_input(self, "its number", number)
        checked, static = infer_static_shape(shape)
        if any(dim is not None and dim < 0 for dim in static):
            raise ValueError(_NEGATIVE_DIM.format(shape=tuple(static)))
        # One integer type for all, so that a backend compiles one kernel for 5 and for 500.
        dims = [_int64_input(dim) for dim in checked]
        return Apply(self, [key, number, *dims], [TensorType(self.dtype, shape=tuple(static))()])

    def infer_shape(self, node: Apply, shapes: Any) -> list[list[Variable]]:
        return [node.inputs[2:]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        leaf, number, *dims = inputs
        shape = concrete_shape(dims)
        drawn = numbers(leaf.tolist(), int(number), math.prod(shape), self.dtype)
        output_storage[0][0] = drawn.reshape(shape)


class FoldIn(Keyed):
    """Derive a generator's leaf for one iteration, with a key of its own and the same calls.

    The op is applied to ``(key, data)``: the leaf ``uint32[4]`` and the iteration as a ``uint32`` scalar. It
    gives a ``uint32[4]`` whose first two words are the new key and whose last two are those of the leaf. No
    draw from the leaf itself meets one from a folded leaf.

    Raises
    ------
    TypeError
        When applied, if the key or the data has another type.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.bits import FoldIn
    >>> leaf = np.array([1, 2, 9, 0], dtype="uint32")
    >>> FoldIn()(leaf, np.uint32(3)).eval()[2:]
    array([9, 0], dtype=uint32)
    """

    __props__ = ()

    def make_node(self, key: Any, data: Any) -> Apply:
        key = key_input(self, key)
        data = word_input(self, "its data", data)
        return Apply(self, [key, data], [TensorType("uint32", shape=(4,))()])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        leaf, data = inputs
        folded = leaf.copy()
        folded[:2] = folded_key(leaf.tolist(), int(data))
        output_storage[0][0] = folded


@_vectorize_node.register(Keyed)
def _vectorize_keyed(op: Keyed, node: Apply, *batched: Variable) -> Apply | list[Variable]:
    key, *others = batched
    if key.type.ndim == 2 and key.type.shape[0] is not None:
        # Each key has a stream of its own, as if it were drawn from alone.
        def of_member(k: int) -> list[Variable]:
            return [
                new[k] if new.type.ndim > old.type.ndim else new
                for new, old in zip(others, node.inputs[1:], strict=True)
            ]

        return [pt.stack([op(key[k], *of_member(k)) for k in range(key.type.shape[0])])]
    second = "number" if isinstance(op, Numbered) else "data"
    names = ["key", second, *("shape" for _ in node.inputs[2:])]
    for what, old, new in zip(names, node.inputs, batched, strict=True):
        if new.type.ndim != old.type.ndim:
            raise ValueError(_BATCHED.format(op=op, what=what, given=new.type, expected=old.type))
    return op.make_node(*batched)
