"""Slots: the declaration of one piece of state, and its symbolic handle."""

from __future__ import annotations

import enum
import itertools
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml_state.typetext import type_text

__all__ = ["Copied", "Derived", "Role", "Slot", "SlotVariable", "Stacked"]


class Role(enum.Enum):
    """What a piece of state is for.

    Roles select: wherever a ``where`` is taken, a role stands for all leaves that have it, and
    ``&``, ``|`` and ``~`` combine it with any other selector.

    Examples
    --------
    >>> from ptml_state import Role
    >>> Role.PARAMETER
    Role.PARAMETER
    >>> Role("clock") is Role.CLOCK
    True
    """

    PARAMETER = "parameter"
    STATISTIC = "statistic"
    GENERATOR = "generator"
    CLOCK = "clock"
    OPTIMIZER = "optimizer"
    CACHE = "cache"

    def __repr__(self) -> str:
        return f"Role.{self.name}"

    def __str__(self) -> str:
        return self.value

    def __and__(self, other: Any) -> Any:
        from ptml_state.where import where

        return where(self) & other

    def __or__(self, other: Any) -> Any:
        from ptml_state.where import where

        return where(self) | other

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Any:
        from ptml_state.where import where

        return ~where(self)


_ordinals = itertools.count()
_live: weakref.WeakValueDictionary[str, Slot] = weakref.WeakValueDictionary()


def _static_shape(shape: Any) -> tuple[int, ...]:
    shape = tuple(shape)
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise ValueError(
                f"A slot's shape is a tuple of whole numbers, all known and none negative; got {shape}."
            )
    return tuple(int(size) for size in shape)


@attrs.frozen
class Copied:
    """Initialize a slot to the value that the slot which it accompanies has in the store, cast to its dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml_state import Role, Slot
    >>> W = Slot("W", Role.PARAMETER, "float64", (2,), lambda rng, shape, dtype: np.ones(shape, dtype))
    >>> Slot("average", Role.OPTIMIZER, "float64", (2,), Copied(), of=W)
    Slot('average/W', Role.OPTIMIZER, float64[2])
    """

    def __call__(self, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Refuse: there is no value but in a store."""
        raise TypeError("What starts at another slot's value has none without a store: compile a program.")


@attrs.frozen
class Derived:
    """Initialize a slot to a function of the value that another slot starts at.

    Where a state has the other's value and lacks this one's, it is the function of what the state has.

    Parameters
    ----------
    of : Slot
        The other.
    function : callable
        From an array to an array of the slot's shape.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml_state import Role, Slot
    >>> W = Slot("W", Role.PARAMETER, "float64", (2, 3), lambda rng, shape, dtype: np.ones(shape, dtype))
    >>> largest = Slot("largest", Role.STATISTIC, "float64", (), Derived(W, np.max))
    >>> float(largest.started(np.array([[1.0, 4.0], [2.0, 3.0]])))
    4.0
    """

    of: Slot
    function: Callable[[np.ndarray], Any]

    def __call__(self, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Refuse: it is the other slot's value that decides."""
        raise TypeError(f"What starts at a function of {self.of.address!r} has no value without that one.")


@attrs.frozen
class Stacked:
    """Initialize a slot to what copies of another would be drawn as, one after the other.

    Parameters
    ----------
    slot : Slot
        The other, of one axis less.
    n : int
        The number of copies.
    place : str
        The end of the slot's address, before which the copies have their number: the copy ``k`` of
        ``block/fc/W``, where it is ``fc/W``, is drawn as ``block{k}/fc/W`` would be.
    """

    slot: Slot
    n: int
    place: str

    def addresses(self, address: str) -> list[str]:
        """Give the addresses that the copies would have."""
        before = address.removesuffix(f"/{self.place}")
        return [f"{before}{k}/{self.place}" for k in range(self.n)]

    def __call__(self, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Refuse: the address decides."""
        raise TypeError(f"A stack of {self.slot.address!r} is drawn by its address: take first_value.")


@attrs.frozen(eq=False, repr=False)
class Slot:
    """The declaration of one piece of state.

    A slot has no value: values sit in a :class:`~ptml_state.State`, and live in a
    :class:`~ptml_state.Store`. Slots are compared by identity.

    Parameters
    ----------
    name : str
        The leaf's name below its owner: ``"W"``, ``"running_mean"``, ``"adam/first_moment"``.
    role : Role
        What it is for.
    dtype : str
        The dtype of its values, for good.
    shape : tuple of int
        The shape of its values, for good.
    initializer : callable
        ``initializer(rng, shape, dtype) -> array`` draws the first value. :class:`Copied` takes that of `of`,
        :class:`Derived` a function of another's.
    owner : object, optional
        What declares it: a layer, a transform. Errors name it.
    attribute : str, optional
        The attribute of `owner` that gives the handle, where it has one. The address is then
        ``owner's name / name``, and `name` alone otherwise.
    of : Slot, optional
        The slot that this one accompanies (a moment accompanies a parameter). The address is then
        ``name / address of that slot``.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml_state import Role, Slot
    >>> best = Slot(
    ...     "best", Role.OPTIMIZER, "float32", (), lambda rng, shape, dtype: np.full(shape, np.inf, dtype)
    ... )
    >>> best
    Slot('best', Role.OPTIMIZER, float32[])
    >>> 2 * best.handle
    Mul.0
    """

    name: str
    role: Role
    dtype: str = attrs.field(converter=lambda dtype: str(np.dtype(dtype)))
    shape: tuple[int, ...] = attrs.field(converter=_static_shape)
    initializer: Callable[..., Any]
    owner: Any = attrs.field(default=None, kw_only=True)
    attribute: str | None = attrs.field(default=None, kw_only=True)
    of: Slot | None = attrs.field(default=None, kw_only=True)
    #: Identity that survives pickling.
    uid: str = attrs.field(factory=lambda: uuid.uuid4().hex, kw_only=True)
    #: Slots made earlier have lower ordinals.
    ordinal: int = attrs.field(factory=_ordinals.__next__, kw_only=True)
    #: The symbolic handle, a root of any graph that reads the slot.
    handle: SlotVariable = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if not self.name or self.name.startswith("/") or self.name.endswith("/"):
            raise ValueError(
                f"A slot's name is a path such as 'W' or 'adam/first_moment'; got {self.name!r}."
            )
        object.__setattr__(self, "handle", SlotVariable(self))
        _live[self.uid] = self

    @property
    def type(self) -> TensorType:
        """The PyTensor type of the slot's values."""
        return TensorType(self.dtype, self.shape)

    @property
    def address(self) -> str:
        """Where the slot sits when no other layer has its owner's name."""
        if self.of is not None:
            return f"{self.name}/{self.of.address}"
        return self.name if self.attribute is None else f"{self.owner.name}/{self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes that one value takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def declarer(self) -> Any:
        """What declares it: of a stack of slots, what declares one of them."""
        slot = self.initializer.slot if isinstance(self.initializer, Stacked) else self
        return slot.owner if slot is self else slot.declarer

    @property
    def starts_from(self) -> Slot | None:
        """The slot whose value decides at what this one starts; None where it is drawn."""
        if isinstance(self.initializer, Copied):
            return self.of
        return self.initializer.of if isinstance(self.initializer, Derived) else None

    def started(self, value: np.ndarray) -> np.ndarray:
        """Give the first value, where it starts from another slot of this value."""
        if isinstance(self.initializer, Derived):
            value = np.asarray(self.initializer.function(value))
        return np.array(value, dtype=self.dtype)

    def __repr__(self) -> str:
        return f"Slot({self.address!r}, {self.role!r}, {type_text(self)})"

    def __copy__(self) -> Slot:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(Slot) if f.init}
        return _restore_slot, (fields,)


def _restore_slot(fields: dict[str, Any]) -> Slot:
    """Give the living slot of this identity, or make it again as its owner's own."""
    living = _live.get(fields["uid"])
    if living is not None:
        return living
    made = Slot(**fields)
    while next(_ordinals) < made.ordinal:  # what is made from now on comes after it
        pass
    if made.attribute is not None:
        vars(made.owner).setdefault(made.attribute, made.handle)
    return made


class SlotVariable(TensorVariable):
    """The symbolic handle of a slot: a root of the graph that stands for the slot's value.

    A slot has one handle for life. Copying or cloning a graph keeps it, and a pickled graph gets it
    back. It goes into any expression: ``loss + 1e-4 * (fc.W**2).sum()``.
    """

    slot: Slot

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.type, None, None, name=None)
        self.slot = slot

    # PyTensor prints `name` in its own errors: say there what to do about a slot that is no input.
    @property
    def name(self) -> str:
        return self.slot.address

    @name.setter
    def name(self, value: str | None) -> None:
        if value is not None:
            raise AttributeError(
                f"The handle of {self.slot.address!r} is named after its slot; name an expression of it."
            )

    def clone(self, **kwargs: Any) -> SlotVariable:
        return self

    def __str__(self) -> str:
        return f"{self.slot.address} [slot: needs ptml.function]"

    def __repr__(self, firstPass: bool = True) -> str:
        return f"<{self.slot.address}: {type_text(self.slot)}>"

    def __copy__(self) -> SlotVariable:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SlotVariable:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _handle_of, (self.slot,)


def _handle_of(slot: Slot) -> SlotVariable:
    return slot.handle
