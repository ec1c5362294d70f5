"""Leaves: one value of a state, with what is known of it."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from ptml_state.mapped import is_mapped
from ptml_state.slot import Role
from ptml_state.typetext import type_text

__all__ = [
    "Leaf",
    "Numbered",
    "fit_value",
    "frozen_array",
    "index_leaves",
    "is_extension",
    "renamed_leaf",
    "same_values",
]


def same_values(one: Any, other: Any) -> bool:
    """Say whether two arrays have one dtype, one shape and the same bits; NaN equals NaN.

    Examples
    --------
    >>> import numpy as np
    >>> same_values(np.array([1.0, np.nan]), np.array([1.0, np.nan]))
    True
    >>> same_values(np.float32(1), np.float64(1))
    False
    """
    if one is other:
        return True
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.tobytes() == other.tobytes():
        return True
    if one.dtype.kind not in "fcV":  # ml_dtypes' floats are of kind V
        return False
    missing = np.isnan(one)
    if not np.array_equal(missing, np.isnan(other)):
        return False
    return one[~missing].tobytes() == other[~missing].tobytes()


@attrs.frozen
class Numbered:
    """A layer without a name of its own, which its network numbers by position.

    Parameters
    ----------
    label : str
        What it is called there: ``"Linear_2"``.
    configuration : str
        What it is, as the call that makes it: ``"Linear(n_in=2, n_out=2)"``. Numbers change with the order of
        layers, so this is what tells whether values belong to it.

    Examples
    --------
    >>> Numbered("Linear_2", "Linear(n_in=2, n_out=2)").position
    2
    """

    label: str
    configuration: str

    @property
    def position(self) -> int:
        """Which of the layers of its kind it is, from 1 on."""
        number = self.label.rpartition("_")[2]
        return int(number) if number.isdecimal() else 1


@attrs.frozen(unsafe_hash=False, repr=False)
class Leaf:
    """One value of a state, with what is known of it. Predicates in a ``where`` are given these.

    Parameters
    ----------
    address : str
        The path to it: ``"fc1/W"``.
    value : array
        The value: a read-only numpy array, or, inside a JAX transformation, JAX's array.
    role : Role, default Role.PARAMETER
        What it is for.
    owner : str, optional
        The class name of the layer or transform that declares it: ``"Linear"``.
    uid : str, optional
        The identity of the slot that it is a value of. No part of equality.
    uses : int, default 1
        In how many places of the network the owner sits; above one, the leaf is shared.
    layer : Numbered, optional
        The layer that the address numbers, where it has no name of its own. No part of equality.

    Examples
    --------
    >>> import numpy as np
    >>> leaf = Leaf("fc1/W", np.zeros((4, 3), "float32"), owner="Linear")
    >>> leaf
    Leaf('fc1/W', Role.PARAMETER, float32[4,3], owner='Linear')
    >>> leaf.shape, leaf.dtype, leaf.nbytes
    ((4, 3), dtype('float32'), 48)
    """

    address: str
    value: Any = attrs.field(eq=attrs.cmp_using(eq=same_values))
    role: Role = Role.PARAMETER
    owner: str | None = None
    uid: str | None = attrs.field(default=None, eq=False)
    uses: int = 1
    layer: Numbered | None = attrs.field(default=None, eq=False)

    @property
    def dtype(self) -> Any:
        """The dtype of the value; None where it is no array."""
        return getattr(self.value, "dtype", None)

    @property
    def shape(self) -> Any:
        """The shape of the value; None where it is no array."""
        return getattr(self.value, "shape", None)

    @property
    def size(self) -> int:
        """How many numbers the value holds."""
        return 0 if self.shape is None else int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """How many bytes the value takes."""
        return 0 if self.dtype is None else self.size * int(np.dtype(self.dtype).itemsize)

    @property
    def name(self) -> str:
        """The last component of the address."""
        return self.address.rpartition("/")[2]

    def __repr__(self) -> str:
        owner = "" if self.owner is None else f", owner={self.owner!r}"
        uses = "" if self.uses == 1 else f", uses={self.uses}"
        return f"Leaf({self.address!r}, {self.role!r}, {type_text(self.value)}{owner}{uses})"


def renamed_leaf(leaf: Leaf, address: str) -> Leaf:
    """Give a leaf another address on purpose: it is then no longer that of its slot, nor of a numbered layer.

    Examples
    --------
    >>> renamed_leaf(Leaf("fc/W", 1.0, uid="0a"), "head/W").uid is None
    True
    """
    return attrs.evolve(leaf, address=address, uid=None, layer=None)


def index_leaves(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """Index leaves by address, after checking that the addresses form a tree.

    Raises
    ------
    ValueError
        When an address has an empty component, is there twice, or is the path to another.
    """
    known: dict[str, Leaf] = {}
    for leaf in leaves:
        address = leaf.address
        if not all(address.split("/")):
            raise ValueError(f"An address is a path without empty components, as 'fc1/W'; got {address!r}.")
        if address in known:
            raise ValueError(f"Two leaves have the address {address!r}. Rename one of them.")
        known[address] = leaf
    for address in known:
        above = address.rpartition("/")[0]
        while above:
            if above in known:
                raise ValueError(f"{above!r} is a leaf, so nothing can sit below it; got also {address!r}.")
            above = above.rpartition("/")[0]
    return known


SYMBOLIC = """\
{address!r} is given a symbolic variable, and a State holds values. Write
    {instead}"""
SUBTREE = """\
{address!r} is a leaf, and is given a {got}. To put other values into a subtree, write
    state | State({{"fc1": {{...}}}})"""
LOSSY = """\
{address!r} is {old}, and {given} is {new}, which does not cast to {dtype} without loss. Write
    {instead}"""
OTHER_SHAPE = """\
{address!r} is {old}, and {given} is {new}.
Programs are compiled for a shape, so leaves keep theirs. To give it another on purpose, write
    state.replace({{...}}, reshape=True)"""


def frozen_array(value: Any, address: str, *, foreign: bool = False) -> Any:
    """Make a value a read-only, C-contiguous numpy array of its own.

    Parameters
    ----------
    value : array-like
        Read-only arrays that own their memory, or lie in an archive, are given back as they are, and so are
        the values that JAX traces with.
    address : str
        Where it goes, for the error's text.
    foreign : bool, default False
        Whether to keep arrays of other libraries.

    Raises
    ------
    TypeError
        When it is no array of numbers.
    """
    if isinstance(value, np.ndarray):
        flags = value.flags
        lies_well = flags.c_contiguous and flags.aligned and value.dtype.isnative
        if lies_well and not flags.writeable and (flags.owndata or is_mapped(value)):
            return value
    elif _is_traced(value) or (foreign and _is_foreign(value)):
        return value
    elif isinstance(value, Variable):
        shared = "variable.get_value()" if isinstance(value, SharedVariable) else "variable.eval()"
        raise TypeError(SYMBOLIC.format(address=address, instead=shared))
    elif isinstance(value, Mapping):
        raise TypeError(SUBTREE.format(address=address, got=type(value).__name__))
    try:
        array = np.array(value, order="C")
    except Exception as error:
        raise TypeError(f"{address!r} is given what makes no array: {error}") from error
    if array.dtype.kind not in "biufc" and not is_extension(array.dtype):
        raise TypeError(
            f"{address!r} is given {reprlib.repr(value)} ({type(value).__name__}); values are arrays of "
            "numbers."
            if array.ndim == 0
            else f"{address!r} is given an array of {array.dtype}; values are arrays of numbers."
        )
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    array.flags.writeable = False
    return array


def fit_value(leaf: Leaf, value: Any, *, reshape: bool = False) -> Any:
    """Make a value, or what a function gives, one that can take a leaf's place.

    Parameters
    ----------
    leaf : Leaf
        The leaf whose dtype, and whose shape, it keeps.
    value : array-like or callable
        The new value, or a function of the old one.
    reshape : bool, default False
        Whether the shape may be another.

    Raises
    ------
    TypeError
        When it does not cast to the leaf's dtype without loss.
    ValueError
        When it has another shape, or is out of the dtype's range.
    """
    given, instead = "the new value", 'value.astype("{}")'
    if callable(value):
        value = value(leaf.value)
        given, instead = "what the function gave", '(...).astype("{}")  # in the function'
    if value is None:
        raise TypeError(f"{given[0].upper()}{given[1:]} for {leaf.address!r} is None; it must be an array.")
    dtype = np.dtype(leaf.dtype)
    if type(value) in _PYTHON_NUMBERS or isinstance(value, list | tuple):
        new = _of_python_numbers(value, dtype, leaf.address)
    else:
        new = frozen_array(value, leaf.address, foreign=not isinstance(leaf.value, np.ndarray))
        if not np.can_cast(new.dtype, dtype, "safe"):
            raise TypeError(
                LOSSY.format(
                    address=leaf.address,
                    old=type_text(leaf.value),
                    given=given,
                    new=type_text(new),
                    dtype=dtype,
                    instead=instead.format(dtype),
                )
            )
        new = new if new.dtype == dtype else new.astype(dtype)
    if new.shape != leaf.shape:
        if new.shape == () and isinstance(new, np.ndarray):
            new = np.full(leaf.shape, new, dtype)
        elif not reshape:
            raise ValueError(
                OTHER_SHAPE.format(
                    address=leaf.address, old=type_text(leaf.value), given=given, new=type_text(new)
                )
            )
    return frozen_array(new, leaf.address, foreign=True)


_PYTHON_NUMBERS = (bool, int, float, complex)
_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def _of_python_numbers(value: Any, dtype: np.dtype, address: str) -> np.ndarray:
    """Cast numbers that have no dtype of their own, where the dtype can hold them."""
    try:
        plain = np.array(value)
    except ValueError as error:
        raise ValueError(f"{address!r} is given lists that make no array: {error}") from error
    if plain.size == 0:
        return plain.astype(dtype)
    if plain.dtype.kind == "O" and all(isinstance(number, int) for number in plain.flat):
        fits = False
    elif plain.dtype.kind not in "biufc":
        raise TypeError(f"{address!r} is given {reprlib.repr(value)}; values are arrays of numbers.")
    elif _RANKS[plain.dtype.kind] > _RANKS[dtype.kind] or (dtype.kind == "b" and plain.dtype.kind != "b"):
        wanted = {"b": "True or False", "u": "whole numbers", "i": "whole numbers"}.get(
            dtype.kind, "real numbers"
        )
        raise TypeError(f"{address!r} is {dtype} and takes {wanted}; got {reprlib.repr(value)}.")
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            new = plain.astype(dtype)
            if plain.dtype.kind in "iu":
                fits = bool(np.all(new.astype(plain.dtype) == plain))
                if dtype.kind in "iu":
                    fits = bool(plain.min() >= np.iinfo(dtype).min and plain.max() <= np.iinfo(dtype).max)
            else:
                fits = bool(np.all(np.isfinite(new) == np.isfinite(plain)))
    if not fits:
        raise ValueError(f"{address!r} is {dtype}, which cannot hold {reprlib.repr(value)}.")
    return new


def is_extension(dtype: np.dtype) -> bool:
    """Say whether this is one of ml_dtypes' floats (bfloat16 and smaller ones), which NumPy gives kind V."""
    return dtype.kind == "V" and "float" in dtype.name


def _is_foreign(value: Any) -> bool:
    typed = getattr(value, "dtype", None) is not None and getattr(value, "shape", None) is not None
    return typed and not isinstance(value, np.generic | np.ndarray | Variable)


def _is_traced(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)
