"""PyTensor's random generators as functions of a generator's leaf.

The random variables of ``pytensor.tensor.random`` draw from a NumPy generator, which moves on as it is used.
Here such a generator is made afresh in every call, from a leaf ``uint32[4]`` and a number as for a draw, so
that all there is to remember is the leaf. What a random variable leaves behind is another fresh generator, of
the next position: a draw then does not hang on whether the one before it is computed, which is not the same
in a loop and in the loop of its gradient. In the notation of :mod:`ptml.bits`, with ``r = E_key(0, 1)``, the
seed is

* ``E_[r xor (calls_low, number)](0, 2) xor (calls_high, position)``,

which no draw's key equals but by chance: those are blocks of the counter (0, 1). NumPy seeds PCG64 with the
two words; JAX and MLX, whose random variables have generators of their own, take them as a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import random_generator_type

from ptml.bits import Numbered, key_input, threefry, word_input

__all__ = ["AsGenerator", "generator_key", "next_generators", "seeded"]


def generator_key(leaf: Sequence[Any], number: Any, position: Any) -> tuple[Any, Any]:
    """Derive the two words that seed a generator.

    Parameters
    ----------
    leaf
        The four words of the leaf: key, key, calls (low), calls (high).
    number
        The number of this use of the key in the call, from 0 to 2**32 - 1.
    position
        How many random variables have moved the generator on.

    Examples
    --------
    >>> from ptml.bits import draw_key
    >>> from ptml.rng import generator_key
    >>> generator_key((1, 2, 0, 0), 5, 0) == draw_key((1, 2, 0, 0), 5)
    False
    """
    key0, key1, calls_low, calls_high = leaf
    root0, root1 = threefry(key0, key1, 0, 1)
    word0, word1 = threefry(root0 ^ calls_low, root1 ^ number, 0, 2)
    return word0 ^ calls_high, word1 ^ position


def seeded(word0: int, word1: int) -> np.random.Generator:
    """Make a NumPy generator from two words.

    Parameters
    ----------
    word0, word1
        Each from 0 to 2**32 - 1.

    Examples
    --------
    >>> from ptml.rng import seeded
    >>> seeded(1, 2).integers(10, size=3) == seeded(1, 2).integers(10, size=3)
    array([ True,  True,  True])
    """
    return np.random.Generator(np.random.PCG64([int(word0), int(word1)]))


class AsGenerator(Numbered):
    """Make a generator for PyTensor's random variables, as a function of a leaf and a number.

    The op is applied to ``(key, number, position)``: the leaf ``uint32[4]``, and as ``uint32`` scalars the
    number of this use of it within the call, and how many random variables have moved the generator on. Equal
    inputs give generators in equal states. Each one is new, so that a random variable may use it in place.

    Raises
    ------
    TypeError
        When applied, if the key, the number or the position has another type.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.rng import AsGenerator
    >>> rng = AsGenerator()(np.array([1, 2, 0, 0], dtype="uint32"), np.uint32(0), np.uint32(0))
    >>> next_rng, noise = rng.normal(size=(2, 3))
    >>> noise.type.shape
    (2, 3)
    """

    __props__ = ()

    def make_node(self, key: Any, number: Any, position: Any) -> Apply:
        key = key_input(self, key)
        number = word_input(self, "its number", number)
        position = word_input(self, "its position", position)
        return Apply(self, [key, number, position], [random_generator_type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        leaf, number, position = inputs
        output_storage[0][0] = seeded(*generator_key(leaf.tolist(), int(number), int(position)))


def next_generators(node: Apply) -> list[tuple[Variable, Variable]]:
    """Find what to put in the place of the generators that a random variable leaves behind.

    Parameters
    ----------
    node : Apply

    Returns
    -------
    list of pairs
        Each generator that the node moves on, and the one of the next position instead; none where it comes
        from no ``AsGenerator``, as the user's own do.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.rng import AsGenerator, next_generators
    >>> rng = AsGenerator()(np.array([1, 2, 0, 0], dtype="uint32"), np.uint32(0), np.uint32(0))
    >>> next_rng, noise = rng.normal()
    >>> [(moved, instead)] = next_generators(noise.owner)
    >>> moved is next_rng, instead.owner.inputs[2].data
    (True, array(1, dtype=uint32))
    """
    pairs = []
    for before, after in node.op.update(node).items() if isinstance(node.op, RNGConsumerOp) else ():
        if before.owner is not None and isinstance(before.owner.op, AsGenerator):
            key, number, position = before.owner.inputs
            pairs.append((after, before.owner.op(key, number, position.data + np.uint32(1))))
    return pairs
