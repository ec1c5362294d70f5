"""Loading: open a file, bring its leaves under the wanted addresses, compare, and make the state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ptml_state.archives.dialects import Dialect, Plain, Torch
from ptml_state.archives.header import ArchiveError, open_archive
from ptml_state.archives.inspecting import describe
from ptml_state.archives.matching import Axes, Comparison, compare, known_as, laid_out, renamed_by, settled
from ptml_state.archives.metadata import Described
from ptml_state.archives.report import LoadReport
from ptml_state.archives.template import Wanted, wanted_by
from ptml_state.leaf import Leaf, index_leaves, renamed_leaf
from ptml_state.slot import Role
from ptml_state.state import State
from ptml_state.where import find, where

__all__ = ["Migration", "Request", "planned"]

#: Makes a state of one revision of an application that of the next.
Migration = Callable[[State], State]

NOTHING_TO_COPY = (
    "The first value of {address!r} is that of the parameter which it accompanies, and that one is not "
    "loaded. Load both, or give where= without it."
)
_CHOICES = {
    "source": ("ptml", "torch"),
    "missing": ("error", "init"),
    "unexpected": ("error", "ignore"),
    "retyped": ("error", "cast"),
}


@attrs.frozen(kw_only=True)
class Request:
    """The arguments of :func:`ptml_state.load_state`, checked."""

    path: str | os.PathLike[str] = attrs.field(kw_only=False)
    like: Any = None
    where: Any = None
    rename: Mapping[str, str] | None = None
    transpose: Axes | None = None
    missing: str = "error"
    unexpected: str = "error"
    retyped: str = "error"
    seed: int | None = None
    revision: int | None = None
    migrations: Mapping[int, Migration] | None = None
    mapped: bool = True
    source: str = "ptml"

    def __attrs_post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            given = getattr(self, name)
            if given not in choices:
                raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}; got {given!r}.")
            if name != "source" and given != "error" and self.like is None:
                raise TypeError(
                    f"{name}={given!r} says what to do where the file and what it is loaded into differ. "
                    "Write like=program, like=net or like=state with it."
                )
        if self.source == "torch" and self.like is None:
            raise TypeError(
                'source="torch" needs to know what the arrays are for: write like=program or like=net.'
            )
        if self.migrations and self.revision is None:
            raise TypeError(
                "migrations= lead up to a revision: write revision= with it, the number that save_state is "
                "given now."
            )

    @property
    def dialect(self) -> Dialect:
        """What the file's names and layouts mean, where it is not one of ours."""
        return Torch() if self.source == "torch" else Plain()

    @property
    def selector(self) -> Any:
        """Which leaves to load, if not all: a state dict has parameters and statistics."""
        if self.where is None and self.source == "torch":
            return Role.PARAMETER | Role.STATISTIC
        return self.where


def planned(request: Request) -> LoadReport:
    """Say what a request does. Nothing of the arrays is read.

    Raises
    ------
    ArchiveError
        When the file cannot be read.
    """
    header, memory = open_archive(request.path)
    arrays = {address: stored.within(memory) for address, stored in header.arrays.items()}
    described = describe(header, arrays)
    leaves = list(_migrated(described, request))
    # What the file calls a leaf goes along with it, whatever becomes of its address.
    names = [leaf.address for leaf in leaves]
    foreign, dialect = described.format is None, request.dialect
    if foreign:
        leaves, names = dialect.read(leaves, names)
    if request.rename:
        leaves = renamed_by(leaves, request.rename)
    wanted = [] if request.like is None else wanted_by(request.like, request.seed)
    known = {one.leaf.address: one.leaf for one in wanted}
    if foreign:
        leaves = _translated(leaves, known, dialect)
        _refuse_no_tree(header.path, leaves, known if wanted else None)
    called = {leaf.address: name for leaf, name in zip(leaves, names, strict=True)}
    # Selectors, and a dialect, go by the types of layers, which the wanted leaves know.
    adopted = [known_as(leaf, known) for leaf in leaves]
    axes = request.transpose or {}
    turned, orders = laid_out(adopted, dialect.axes(adopted, axes) if foreign else axes)
    refusals = []
    if foreign and (request.like is not None or request.rename):
        refusals = _doubts(list(zip(names, adopted, strict=True)), request)
    selector = request.selector
    if request.like is None:
        chosen = turned if selector is None else find(selector, turned, what="the file")
        nothing = Comparison(loaded=tuple(leaf.address for leaf in chosen))
        return _reported(header.path, request, nothing, chosen, [], called, orders, refusals)
    # Their order of layers is still the file's own.
    given = [attrs.evolve(leaf, value=new.value) for leaf, new in zip(leaves, turned, strict=True)]
    found = compare(given, [one.leaf for one in wanted], selector)
    return _reported(header.path, request, found, given, wanted, called, orders, refusals)


def _refuse_no_tree(path: Any, leaves: Sequence[Leaf], wanted: Mapping[str, Leaf] | None) -> None:
    """Refuse somebody else's leaves whose addresses clash; those that are left out anyway may be anything."""
    counted = leaves if wanted is None else [leaf for leaf in leaves if leaf.address in wanted]
    try:
        index_leaves(counted)
    except ValueError as error:
        raise ArchiveError(f"{path} holds no state: {error}") from None


def _doubts(named: Sequence[tuple[str, Leaf]], request: Request) -> list[str]:
    if request.selector is not None:
        chosen = where(request.selector)
        named = [(name, leaf) for name, leaf in named if chosen.matches(leaf)]
    doubt = request.dialect.doubt(named, request.transpose)
    return [] if doubt is None else [doubt]


def _migrated(described: Described, request: Request) -> Sequence[Leaf]:
    revision = request.revision
    if revision is None:
        return described.leaves
    if described.revision > revision:
        raise ArchiveError(
            f"{request.path} is of revision {described.revision} of its application, and this one reads up "
            f"to revision {revision}. Update the application."
        )
    _refuse_no_tree(request.path, described.leaves, None)
    state = State._made({leaf.address: leaf for leaf in described.leaves})
    for number in range(described.revision, revision):
        if number not in (request.migrations or {}):
            raise ArchiveError(
                f"{request.path} is of revision {described.revision}, and there is no migration from "
                f"{number} to {number + 1}. Write migrations={{{number}: function}}."
            )
        state = (request.migrations or {})[number](state)
        if not isinstance(state, State):
            raise TypeError(
                f"A migration takes a State and gives one; that from {number} gave {type(state).__name__}."
            )
    return state.leaves


def _translated(leaves: list[Leaf], known: Mapping[str, Leaf], dialect: Dialect) -> list[Leaf]:
    """Bring leaves whose names in a dialect are those of wanted ones under their addresses."""
    there = {leaf.address for leaf in leaves}
    names = {
        name: address
        for name, address in dialect.names(known.values()).items()
        if name in there and address not in there and name not in known
    }
    return [renamed_leaf(leaf, names[leaf.address]) if leaf.address in names else leaf for leaf in leaves]


def _reported(
    path: Any,
    request: Request,
    found: Comparison,
    leaves: Sequence[Leaf],
    wanted: Sequence[Wanted],
    called: Mapping[str, str],
    orders: Mapping[str, Any],
    refusals: list[str],
) -> LoadReport:
    refused = {
        "missing": bool(found.missing) and request.missing == "error",
        "unexpected": bool(found.unexpected) and request.unexpected == "error",
        "retyped": bool(found.retyped if request.retyped == "error" else found.uncastable),
        "reshaped": bool(found.reshaped),
    }
    order = [] if found.another_order is None else [f"its {found.another_order}"]
    return LoadReport(
        path,
        found.loaded,
        renamed={a: called[a] for a in found.loaded if called.get(a, a) != a},
        transposed=tuple(address for address in found.loaded if address in orders),
        missing=found.missing,
        unexpected=found.unexpected,
        retyped=found.retyped,
        reshaped=found.reshaped,
        refusals=(*(kind for kind, bad in refused.items() if bad), *order, *refusals),
        make=lambda: _made(found, leaves, wanted, request.mapped),
    )


def _made(found: Comparison, leaves: Sequence[Leaf], wanted: Sequence[Wanted], mapped: bool) -> State:
    given = {leaf.address: leaf for leaf in leaves}
    targets = {one.leaf.address: one.leaf for one in wanted} or given
    values: dict[str, np.ndarray] = {
        address: settled(given[address].value, address, targets[address].dtype, mapped=mapped)
        for address in found.loaded
    }
    missing = set(found.missing)
    for one in sorted(wanted, key=lambda one: one.after is not None):
        if one.leaf.address in missing:
            if one.after is not None and one.after not in values:
                raise ArchiveError(NOTHING_TO_COPY.format(address=one.leaf.address))
            values[one.leaf.address] = one.first(values)
    return State.of(
        attrs.evolve(leaf, value=values[address]) for address, leaf in targets.items() if address in values
    )
