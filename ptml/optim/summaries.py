"""Summaries: what a rule does to each parameter of a network, and what it remembers of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.type import float_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.loss.weight import averages_over
from ptml.optim.grouping import Partition
from ptml.optim.masks import addressed, building_for, masked
from ptml.optim.transform import Chain, Transform, parts_of, shown, take_step, witnessed
from ptml.optim.updates import Updates
from ptml.start import slots
from ptml_state import Role, Slot, SlotVariable
from ptml_state.display import bytes_text, columns

__all__ = ["Group", "Kind", "Summary", "summary"]

NO_PARAMETERS = "The network has no parameters: there is nothing for a rule to move."


@attrs.frozen
class Group:
    """Parameters that a rule treats alike.

    Parameters
    ----------
    parameters : tuple of str
        Their addresses.
    transforms : tuple of str
        What acts on them, in order; nothing where they are frozen.
    numbers : int
        How many numbers they hold.
    nbytes : int
        Bytes of optimizer state that accompany them.
    """

    parameters: tuple[str, ...]
    transforms: tuple[str, ...]
    numbers: int
    nbytes: int

    @property
    def frozen(self) -> bool:
        """Whether they stay as they are."""
        return not self.transforms


@attrs.frozen
class Kind:
    """Leaves of optimizer state of one name, for all the parameters that have one.

    Parameters
    ----------
    name : str
        The first part of their addresses, such as ``adam/first_moment``.
    role : Role
    leaves : int
        How many there are.
    numbers : int
        How many numbers they hold.
    nbytes : int
        Bytes that they take.
    """

    name: str
    role: Role
    leaves: int
    numbers: int
    nbytes: int


@attrs.frozen(repr=False)
class Summary:
    """What a rule does to the parameters of a network; made by :func:`summary`. It prints as tables.

    Parameters
    ----------
    groups : tuple of Group
        Every parameter is in one.
    state : tuple of Kind
        The optimizer state, clocks and keys of transforms included.
    """

    groups: tuple[Group, ...]
    state: tuple[Kind, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of optimizer state."""
        return sum(kind.nbytes for kind in self.state)

    @property
    def numbers(self) -> int:
        """How many numbers the parameters hold."""
        return sum(group.numbers for group in self.groups)

    @property
    def moving(self) -> int:
        """How many of those are in parameters that move."""
        return sum(group.numbers for group in self.groups if not group.frozen)

    def __str__(self) -> str:
        rows = [["parameters", "numbers", "moved by", "state"]]
        for group in self.groups:
            moved_by = list(group.transforms) or ["frozen"]
            parameters = _abridged(group.parameters)
            for k in range(max(len(parameters), len(moved_by))):
                rows.append(
                    [
                        parameters[k] if k < len(parameters) else "",
                        f"{group.numbers:,}" if k == 0 else "",
                        moved_by[k] if k < len(moved_by) else "",
                        bytes_text(group.nbytes) if k == 0 else "",
                    ]
                )
        frozen = self.numbers - self.moving
        total = f"{self.moving:,} move" + (f", {frozen:,} are frozen" if frozen else "")
        rows.append(["total", f"{self.numbers:,}", total, ""])
        table = columns(rows, [False, True, False, True])
        if not self.state:
            return f"{table}\n\nno optimizer state"
        rows = [["optimizer state", "role", "leaves", "numbers", "bytes"]]
        for kind in self.state:
            counts = [f"{kind.leaves:,}", f"{kind.numbers:,}", bytes_text(kind.nbytes)]
            rows.append([kind.name, str(kind.role), *counts])
        leaves, numbers = (sum(getattr(kind, name) for kind in self.state) for name in ("leaves", "numbers"))
        rows.append(["total", "", f"{leaves:,}", f"{numbers:,}", bytes_text(self.nbytes)])
        return f"{table}\n\n{columns(rows, [False, False, True, True, True])}"

    __repr__ = __str__


def _abridged(addresses: Sequence[str]) -> list[str]:
    listed = list(addresses)
    return listed if len(listed) <= 6 else [*listed[:4], f"and {len(listed) - 4} more"]


def summary(rule: Any, network: Any) -> Summary:
    """Say what a rule does to each parameter of a network, and how much it remembers, without compiling.

    Parameters
    ----------
    rule : transform, or function of ``(loss, parameters)`` that returns Steps
    network : module, or tuple, list or dict of modules, or a loss
        What has the parameters. A rule that reads the loss itself needs the loss here.

    Returns
    -------
    Summary

    Raises
    ------
    ValueError
        If there are no parameters, or the rule decides no step.

    Examples
    --------
    >>> from ptml.layers import Linear, Sequential
    >>> from ptml.optim import adam, chain, clip_by_global_norm, freeze
    >>> net = Sequential(Linear("encoder", n_in=8, n_out=4), Linear("head", n_in=4, n_out=2))
    >>> summary(chain(freeze("encoder"), clip_by_global_norm(1.0), adam(1e-3)), net)
    parameters  numbers  moved by                state
    encoder/W        36  frozen                    0 B
    encoder/b
    head/W           10  ClipByGlobalNorm()      160 B
    head/b               Adam()
    total            46  10 move, 36 are frozen
    <BLANKLINE>
    optimizer state     role       leaves  numbers  bytes
    adam/first_moment   optimizer       2       10   80 B
    adam/second_moment  optimizer       2       10   80 B
    adam/step_count     clock           1        1    8 B
    total                               5       21  168 B
    """
    handles = slots(network, Role.PARAMETER)
    if not handles:
        raise ValueError(NO_PARAMETERS)
    is_loss = isinstance(network, TensorVariable) and network.ndim == 0 and network.dtype in float_dtypes
    parts = network if isinstance(network, list | tuple) else [network]
    notes: dict[SlotVariable, list[str]] = {handle: [] for handle in handles}

    def tell(transform: Any, given: Updates, made: Updates) -> None:
        if not isinstance(transform, Chain | Partition):
            for handle in given.amounts:
                if _acts_on(handle, given, made):
                    notes[handle].append(_text(transform, handle))

    loss = network if is_loss else _stand_in(handles)
    with building_for(parts, handles), witnessed(tell):
        at = {one.value: one.address for one in addressed(handles)}
        updates = take_step(rule, loss, handles)
    declared = _declared(updates)
    alike: dict[tuple[str, ...], list[SlotVariable]] = {}
    for handle in handles:
        alike.setdefault(tuple(notes[handle]) if handle in updates.amounts else (), []).append(handle)
    groups = tuple(
        Group(
            parameters=tuple(at[handle] for handle in members),
            transforms=transforms,
            numbers=_numbers(handle.slot for handle in members),
            nbytes=sum(slot.nbytes for slot in declared for handle in members if slot.of is handle.slot),
        )
        for transforms, members in alike.items()
    )
    return Summary(groups, _kinds(declared))


def _stand_in(handles: Sequence[SlotVariable]) -> TensorVariable:
    """Give a loss that depends on all of these, and weighs as one batch."""
    loss = reduce(pt.add, [pt.sum(handle) for handle in handles])
    return averages_over(loss, pt.constant(1))


def _acts_on(handle: SlotVariable, given: Updates, made: Updates) -> bool:
    moved = made.amounts.get(handle) is not given.amounts[handle]
    new = [key for key in made.state if key not in given.state]
    return moved or any(key.slot.of is handle.slot for key in new)


def _text(transform: Any, handle: SlotVariable) -> str:
    """Write a transform as it acts on a parameter: without what it wraps, and with what its mask says."""
    text = type(transform).__name__ if len(parts_of(transform)) > 1 else shown(transform)
    mask = getattr(transform, "mask", None) if isinstance(transform, Transform) else None
    return text if mask is None or masked(mask, [handle]) else f"{text}, which masks it"


def _declared(updates: Updates) -> list[Slot]:
    """Give the slots that transforms declare, of parameters first, in the order in which they were made."""
    read = [root for root in graph_inputs(list(updates.values())) if isinstance(root, SlotVariable)]
    found = dict.fromkeys(handle.slot for handle in [*updates.state, *read])
    roles = (Role.OPTIMIZER, Role.CLOCK, Role.GENERATOR)
    declared = [slot for slot in found if slot.role in roles and slot.attribute is None]
    return sorted(declared, key=lambda slot: (slot.of is None, slot.ordinal))


def _numbers(declared: Iterable[Slot]) -> int:
    return sum(int(np.prod(slot.shape, dtype=np.int64)) for slot in declared)


def _kinds(declared: Sequence[Slot]) -> tuple[Kind, ...]:
    kinds: dict[tuple[str, Role], list[Slot]] = {}
    for slot in declared:
        kinds.setdefault((slot.name, slot.role), []).append(slot)
    return tuple(
        Kind(name, role, len(members), _numbers(members), sum(slot.nbytes for slot in members))
        for (name, role), members in kinds.items()
    )
