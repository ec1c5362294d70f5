"""The state tree: an ordered, immutable mapping from address to array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import attrs
import numpy as np

from ptml_state.display import Diff, html_table, short_text, table_text
from ptml_state.edit import Editable, meet_jax, must_be_state
from ptml_state.leaf import Leaf, frozen_array, index_leaves, same_values
from ptml_state.slot import Role, Slot, SlotVariable
from ptml_state.where import AddressError, find, nearest

__all__ = ["State", "combine"]

SETTING = """\
A State never changes. Write
    state = state.replace({{{key!r}: value}})"""
DELETING = """\
A State never changes. Write
    state = state.drop({key!r})"""


class State(Editable):
    """The values of a model: an ordered, immutable mapping from address to read-only numpy array.

    A state also knows what each leaf is for (its :class:`Role`) and which layer or transform declares it.
    It never refers to the memory of a running program. Every method that changes something gives a new
    state, which shares the arrays that stay as they were.

    ``state["fc1/W"]`` is an array, ``state[fc1.W]`` the same by its slot, and ``state["fc1"]`` the state
    below ``fc1``. ``print(state)`` shows the tree.

    Parameters
    ----------
    values : mapping from address to array-like, or a nested dict
        The values, in order. Keys are joined by ``/``; arrays are copied, Python numbers become arrays
        without axes. A state may sit inside, and keeps its roles.
    roles : Role, or mapping from selector to Role, optional
        What the leaves are for. Default: the roles of the states inside, and ``Role.PARAMETER``.

    Raises
    ------
    ValueError
        When an address has an empty component, or is at once a leaf and the path of others.
    TypeError
        When a value is no array of numbers.

    Notes
    -----
    A state is a JAX pytree, whose leaves keep their order. JAX learns of it when the first state is made
    or looked at after JAX was imported; for one made before that and handed over untouched, call
    ``ptml_state.register_jax()``. Inside JAX's transformations, and in what they return, the leaves are
    JAX's own arrays; ``State(state)`` has them as numpy arrays again.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml_state import Role, State
    >>> state = State(
    ...     {"fc1": {"W": np.ones((2, 3), "float32"), "b": np.zeros(3, "float32")}, "bn/running_mean": [0.5]},
    ...     roles={"bn": Role.STATISTIC},
    ... )
    >>> state["fc1/b"]
    array([0., 0., 0.], dtype=float32)
    >>> state["fc1"]
    State(2 leaves, 36 B: W float32[2,3], b float32[3])
    >>> print(state)
    fc1
      W              parameter  float32[2,3]  24 B
      b              parameter  float32[3]    12 B
    bn/running_mean  statistic  float64[1]     8 B
    <BLANKLINE>
    parameter  2 leaves   9 numbers  36 B
    statistic  1 leaf     1 number    8 B
    total      3 leaves  10 numbers  44 B
    """

    __slots__ = ()

    def __init__(self, values: Mapping[str, Any], roles: Role | Mapping[Any, Role] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(
                f"A State is made from a mapping of addresses to arrays; got {type(values).__name__}. "
                'Write State({"fc1/W": array}).'
            )
        leaves = index_leaves(_leaves_below("", values))
        if isinstance(roles, Mapping):
            for selector, role in roles.items():
                chosen = [leaves[selector]] if selector in leaves else find(selector, leaves.values())
                for leaf in chosen:
                    leaves[leaf.address] = attrs.evolve(leaf, role=_role(role))
        elif roles is not None:
            leaves = {address: attrs.evolve(leaf, role=_role(roles)) for address, leaf in leaves.items()}
        self._fill(leaves)

    @classmethod
    def of(cls, leaves: Iterable[Leaf]) -> State:
        """Make a state of leaves, keeping what they know.

        Parameters
        ----------
        leaves : iterable of Leaf
            The leaves, in order. A numpy array is copied unless it owns its memory and is read-only;
            arrays of other libraries are kept as they are.

        Examples
        --------
        >>> from ptml_state import Leaf, Role, State
        >>> State.of([Leaf("bn/running_var", [1.0], Role.STATISTIC, owner="BatchNorm")]).leaves
        (Leaf('bn/running_var', Role.STATISTIC, float64[1], owner='BatchNorm'),)
        """
        kept = (
            attrs.evolve(leaf, value=frozen_array(leaf.value, leaf.address, foreign=True)) for leaf in leaves
        )
        return cls._made(index_leaves(kept))

    # ---- reading

    def _leaf(self, key: Any) -> Leaf | None:
        """Give the leaf of an address or slot, if there is one."""
        meet_jax()
        if isinstance(key, str):
            return self._by_address.get(key)
        slot = key.slot if isinstance(key, SlotVariable) else key
        if not isinstance(slot, Slot):
            raise TypeError(
                f"state[...] takes an address or a slot; got {key!r} ({type(key).__name__}). "
                "To select several leaves, write state.select(...)."
            )
        if self._by_uid is None:
            self._by_uid = {leaf.uid: leaf for leaf in self._by_address.values() if leaf.uid is not None}
        return self._by_uid.get(slot.uid) or self._by_address.get(slot.address)

    def __getitem__(self, key: Any) -> Any:
        leaf = self._leaf(key)
        if leaf is not None:
            return leaf.value
        if isinstance(key, str):
            below = {
                address[len(key) + 1 :]: leaf
                for address, leaf in self._by_address.items()
                if address.startswith(key + "/")
            }
            if below and key:
                return State._made({name: attrs.evolve(leaf, address=name) for name, leaf in below.items()})
            pattern = " To select by a pattern, write state.select(...)." if set(key) & set("*?[") else ""
            raise AddressError(f"{key!r} is not in the state. {nearest(key, self)}{pattern}")
        slot = key.slot if isinstance(key, SlotVariable) else key
        raise AddressError(f"The slot {slot.address!r} is not in the state. {nearest(slot.address, self)}")

    def get(self, key: Any, default: Any = None) -> Any:
        """Give ``state[key]``, or a default where it is missing."""
        # Without asking for the key: the error's search for the nearest addresses takes its time.
        return self[key] if key in self else default  # noqa: SIM401 this is what get does

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str | Slot | SlotVariable):
            return False
        if self._leaf(key) is not None:
            return True
        return isinstance(key, str) and any(address.startswith(key + "/") for address in self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_address)

    def __len__(self) -> int:
        return len(self._by_address)

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each leaf, by address.

        Examples
        --------
        >>> State({"bn/running_mean": [0.0]}, Role.STATISTIC).roles
        {'bn/running_mean': Role.STATISTIC}
        """
        return {address: leaf.role for address, leaf in self._by_address.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that all values take together.

        Examples
        --------
        >>> State({"fc1/b": [0.0, 0.0]}).nbytes
        16
        """
        return sum(leaf.nbytes for leaf in self._by_address.values())

    @staticmethod
    def combine(*states: State) -> State:
        """Put states that share no address together; the inverse of :meth:`partition`.

        Raises
        ------
        ValueError
            When an address is in two of them, or one's leaf is the path of another's.

        Examples
        --------
        >>> State.combine(State({"fc1/W": [1.0]}), State({"fc2/W": [2.0]}))
        State(2 leaves, 16 B: fc1/W float64[1], fc2/W float64[1])
        """
        for state in states:
            must_be_state(state, "combine takes states")
        return State._made(index_leaves(leaf for state in states for leaf in state.leaves))

    # ---- comparing

    def diff(self, other: State, tolerance: float = 0.0) -> Diff:
        """Say what changed from this state to another.

        Parameters
        ----------
        other : State
            The later state.
        tolerance : float, default 0.0
            Largest absolute change of a number that counts as none.

        Returns
        -------
        Diff
            False when nothing differs.

        Examples
        --------
        >>> before = State({"fc1/W": [1.0, 2.0], "fc1/b": [0.0]})
        >>> before.diff(before.replace({"fc1/W": [1.0, 2.5]}).rename({"fc1/b": "fc1/bias"}))
        1 added, 1 removed, 1 changed
          added     fc1/bias
          removed   fc1/b
          changed   fc1/W  by up to 0.5
        """
        must_be_state(other, "diff compares with a state")
        return Diff.between(self._by_address, other._by_address, tolerance)

    def allclose(
        self, other: State, rtol: float = 1e-5, atol: float = 1e-8, *, equal_nan: bool = False
    ) -> bool:
        """Say whether all values are within a tolerance of another state's, as ``numpy.allclose`` does.

        Raises
        ------
        ValueError
            When the two do not have the same addresses and shapes.

        Examples
        --------
        >>> State({"fc1/b": [1.0]}).allclose(State({"fc1/b": [1.0 + 1e-9]}))
        True
        """
        must_be_state(other, "allclose compares with a state")
        differing = Diff.between(self._by_address, other._by_address, np.inf)
        if differing.added or differing.removed or differing.reshaped:
            raise ValueError(f"allclose compares states of the same addresses and shapes:\n{differing}")
        return all(
            np.allclose(
                _wide(leaf.value), _wide(other._by_address[address].value), rtol, atol, equal_nan=equal_nan
            )
            for address, leaf in self._by_address.items()
        )

    def __eq__(self, other: object) -> bool:
        """Same addresses in any order, and for each the same role, dtype, shape and bits; NaN equals NaN."""
        if not isinstance(other, State):
            return NotImplemented
        return self._by_address.keys() == other._by_address.keys() and all(
            leaf.role is other._by_address[address].role
            and same_values(leaf.value, other._by_address[address].value)
            for address, leaf in self._by_address.items()
        )

    __hash__ = None  # type: ignore[assignment]

    # ---- turning into other things

    def to_dict(self) -> dict[str, Any]:
        """Give a nested dict of numpy arrays, copies that may be written to.

        Examples
        --------
        >>> State({"fc1/W": [1.0], "fc1/b": [0.0]}).to_dict()
        {'fc1': {'W': array([1.]), 'b': array([0.])}}
        """
        nested: dict[str, Any] = {}
        for address, leaf in self._by_address.items():
            *path, name = address.split("/")
            level = nested
            for component in path:
                level = level.setdefault(component, {})
            level[name] = np.array(leaf.value)
        return nested

    @classmethod
    def from_dict(cls, nested: Mapping[str, Any], roles: Role | Mapping[Any, Role] | None = None) -> State:
        """Make a state of a nested dict: the inverse of :meth:`to_dict`.

        Examples
        --------
        >>> state = State({"bn/running_mean": [0.0]}, Role.STATISTIC)
        >>> State.from_dict(state.to_dict(), roles=state.roles) == state
        True
        """
        return cls(nested, roles)

    def __copy__(self) -> State:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.leaves,)

    # ---- showing

    def table(self, *, statistics: bool = False) -> str:
        """Write the tree: each leaf with its role, type and bytes, and totals by role.

        Parameters
        ----------
        statistics : bool, default False
            Also show each leaf's mean, spread, least, largest, share of zeros, and how many numbers are
            not finite (which the others leave out).

        Examples
        --------
        >>> print(State({"fc1/W": [0.0, 1.0, 2.0, 5.0]}).table(statistics=True))
                                             mean    std    min    max  zeros  not finite
        fc1/W  parameter  float64[4]  32 B  2.000  1.871  0.000  5.000    25%           0
        <BLANKLINE>
        parameter  1 leaf  4 numbers  32 B
        """
        return table_text(self.leaves, statistics=statistics)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return short_text(self.leaves)

    def _repr_html_(self) -> str:
        return html_table(self.leaves)

    # ---- what a state does not do

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(SETTING.format(key=key))

    def __delitem__(self, key: Any) -> NoReturn:
        raise TypeError(DELETING.format(key=key))


combine = State.combine


def _role(role: Any) -> Role:
    try:
        return Role(role)
    except ValueError:
        known = ", ".join(map(repr, Role))
        raise ValueError(f"{role!r} is no role; the roles are {known}.") from None


def _leaves_below(path: str, values: Mapping[str, Any]) -> Iterator[Leaf]:
    if isinstance(values, State):
        for leaf in values.leaves:
            yield attrs.evolve(
                leaf, address=path + leaf.address, value=frozen_array(leaf.value, path + leaf.address)
            )
        return
    for key, value in values.items():
        if not isinstance(key, str):
            slot = key.slot if isinstance(key, SlotVariable) else key
            instead = f" Write its address, {slot.address!r}." if isinstance(slot, Slot) else ""
            raise TypeError(f"Addresses are strings; got {key!r} ({type(key).__name__}).{instead}")
        if isinstance(value, Mapping):
            yield from _leaves_below(f"{path}{key}/", value)
        else:
            yield Leaf(path + key, frozen_array(value, path + key))


def _wide(value: Any) -> np.ndarray:
    # NumPy's own tolerance tests do not know the extension floats.
    array = np.asarray(value)
    return array.astype("float32") if array.dtype.kind == "V" else array


def _restored(leaves: tuple[Leaf, ...]) -> State:
    for leaf in leaves:
        if isinstance(leaf.value, np.ndarray) and leaf.value.flags.owndata:
            leaf.value.flags.writeable = False
    return State.of(leaves)
