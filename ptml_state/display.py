"""How states and their differences are shown."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ptml_state.leaf import Leaf, same_values
from ptml_state.slot import Role
from ptml_state.typetext import type_text

__all__ = ["Diff", "bytes_text", "columns", "html_table", "short_text", "table_text"]

_STATISTICS = ("mean", "std", "min", "max", "zeros", "not finite")
_ON_THE_RIGHT = {"bytes", *_STATISTICS}


def bytes_text(count: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> bytes_text(812), bytes_text(34_512), bytes_text(2_400_000_000)
    ('812 B', '34.5 kB', '2.4 GB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:,.1f} {unit}"


def short_text(leaves: Sequence[Leaf]) -> str:
    """Write a state in one line.

    Examples
    --------
    >>> short_text([Leaf("fc1/W", np.zeros((4, 3), "float32"))])
    'State(1 leaf, 48 B: fc1/W float32[4,3])'
    """
    if not leaves:
        return "State(no leaves)"
    shown = [f"{leaf.address} {type_text(leaf.value)}" for leaf in leaves[:3]]
    if len(leaves) > 3:
        shown.append("…")
    size = bytes_text(sum(leaf.nbytes for leaf in leaves))
    return f"State({_count(len(leaves), 'leaf', 'leaves')}, {size}: {', '.join(shown)})"


def table_text(leaves: Sequence[Leaf], *, statistics: bool = False) -> str:
    """Write a state as a tree with one row a leaf, and totals by role below it.

    Parameters
    ----------
    leaves : sequence of Leaf
        The leaves, in order.
    statistics : bool, default False
        Whether to add each leaf's mean, standard deviation, least, largest, share of zeros and count of
        numbers that are not finite.
    """
    if not leaves:
        return "State without leaves"
    header = _header(statistics)
    rows = [
        {"address": "  " * depth + label, **({} if leaf is None else _cells(leaf, statistics))}
        for depth, label, leaf in _tree_rows(leaves)
    ]
    shown = [name for name in header if any(row.get(name) for row in rows)]
    lines = [[row.get(name, "") for name in shown] for row in rows]
    right = [name in _ON_THE_RIGHT for name in shown]
    if statistics:
        lines.insert(0, [name if name in _STATISTICS else "" for name in shown])
    totals = [list(total) for total in _totals(leaves)]
    return columns(lines, right) + "\n\n" + columns(totals, [False, True, True, True])


def html_table(leaves: Sequence[Leaf]) -> str:
    """Write a state as a table for notebooks."""
    left, right = ' style="text-align: left"', ' style="text-align: right"'
    rows = []
    for depth, label, leaf in _tree_rows(leaves):
        cells = {} if leaf is None else _cells(leaf, statistics=False)
        name = f'<td style="text-align: left; padding-left: {1 + depth}em">{html.escape(label)}</td>'
        rows.append(
            name
            + f"<td{left}>{html.escape(cells.get('role', ''))}</td>"
            + f"<td{left}><code>{html.escape(cells.get('type', ''))}</code></td>"
            + f"<td{right}>{html.escape(cells.get('bytes', ''))}</td>"
            + f"<td{left}>{html.escape(cells.get('shared', ''))}</td>"
        )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    feet = "".join(
        f"<tr><th{left}>{name}</th><td{left}>{count}</td><td{left}>{numbers}</td><td{right}>{size}</td><td></td></tr>"
        for name, count, numbers, size in _totals(leaves)
    )
    heads = "".join(f"<th{left}>{name}</th>" for name in ("address", "role", "type", "bytes", ""))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody><tfoot>{feet}</tfoot></table>"


def _header(statistics: bool) -> tuple[str, ...]:
    return ("address", "role", "type", "bytes", "shared", *(_STATISTICS if statistics else ()))


def _cells(leaf: Leaf, statistics: bool) -> dict[str, str]:
    cells = {
        "role": str(leaf.role),
        "type": type_text(leaf.value),
        "bytes": bytes_text(leaf.nbytes),
        "shared": f"shared ×{leaf.uses}" if leaf.uses > 1 else "",  # noqa: RUF001 "times" is what is meant
    }
    return {**cells, **_statistics(leaf.value)} if statistics else cells


def _statistics(value: Any) -> dict[str, str]:
    array = np.asarray(value)
    if array.size == 0 or array.dtype.kind == "c":
        return {}
    wide = array.astype("float64")
    finite = wide[np.isfinite(wide)]
    counts = {
        "zeros": f"{np.mean(wide == 0):.0%}",
        "not finite": str(array.size - finite.size),
    }
    if not finite.size:
        return counts
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = {"mean": finite.mean(), "std": finite.std(), "min": finite.min(), "max": finite.max()}
    return {**{name: f"{float(number):#.4g}" for name, number in numbers.items()}, **counts}


def _tree_rows(leaves: Sequence[Leaf]) -> Iterator[tuple[int, str, Leaf | None]]:
    """Give (depth, label, leaf or None) for each row; a path without a fork takes one row."""
    nested: dict[str, Any] = {}
    for leaf in leaves:
        *path, name = leaf.address.split("/")
        level = nested
        for component in path:
            level = level.setdefault(component, {})
        level[name] = leaf
    yield from _rows_of(nested, 0)


def _rows_of(nested: Mapping[str, Any], depth: int) -> Iterator[tuple[int, str, Leaf | None]]:
    for label, below in nested.items():
        while isinstance(below, dict) and len(below) == 1:
            ((name, below),) = below.items()
            label = f"{label}/{name}"
        if isinstance(below, dict):
            yield depth, label, None
            yield from _rows_of(below, depth + 1)
        else:
            yield depth, label, below


def _totals(leaves: Sequence[Leaf]) -> Iterator[tuple[str, str, str, str]]:
    by_role = {role: [leaf for leaf in leaves if leaf.role is role] for role in Role}
    groups = {str(role): group for role, group in by_role.items() if group}
    if len(groups) > 1:
        groups["total"] = list(leaves)
    for name, group in groups.items():
        yield (
            name,
            _count(len(group), "leaf", "leaves"),
            _count(sum(leaf.size for leaf in group), "number", "numbers"),
            bytes_text(sum(leaf.nbytes for leaf in group)),
        )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def columns(rows: Sequence[Sequence[str]], on_the_right: Sequence[bool]) -> str:
    """Write rows of cells in columns, each as wide as its widest cell.

    Parameters
    ----------
    rows : sequence of sequences of str
        All of one length.
    on_the_right : sequence of bool
        Which columns are set flush right.

    Examples
    --------
    >>> print(columns([["W", "1,024"], ["bias", "8"]], [False, True]))
    W     1,024
    bias      8
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, on_the_right, strict=True)
        ).rstrip()
        for row in rows
    )


@attrs.frozen(repr=False, unsafe_hash=False)
class Diff:
    """What differs between two states, from ``before.diff(after)``. False when nothing does.

    Parameters
    ----------
    added, removed : tuple of str
        Addresses that only the later, and only the earlier, has.
    reshaped, retyped : dict from str to (str, str)
        Both types of the leaves whose shape, or only whose dtype, is another.
    reroled : dict from str to (Role, Role)
        Both roles of the leaves whose role is another.
    changed : dict from str to float
        The largest absolute change of each leaf that changed, largest first; infinite where a NaN came
        or went.

    Examples
    --------
    >>> from ptml_state import State
    >>> before = State({"fc1/W": [1.0, 2.0]})
    >>> diff = before.diff(before.replace({"fc1/W": 2.0}))
    >>> diff
    1 changed
      changed   fc1/W  by up to 1
    >>> diff.changed
    {'fc1/W': 1.0}
    >>> bool(before.diff(before))
    False
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reshaped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    retyped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    reroled: dict[str, tuple[Role, Role]] = attrs.field(factory=dict)
    changed: dict[str, float] = attrs.field(factory=dict)

    @classmethod
    def between(cls, before: Mapping[str, Leaf], after: Mapping[str, Leaf], tolerance: float = 0.0) -> Diff:
        """Compare leaves by address.

        Parameters
        ----------
        before, after : mapping from str to Leaf
            What to compare.
        tolerance : float, default 0.0
            Largest absolute change of a number that counts as none.
        """
        reshaped, retyped, reroled, changed = {}, {}, {}, {}
        for address, old in before.items():
            if address not in after:
                continue
            new = after[address]
            if old.role is not new.role:
                reroled[address] = (old.role, new.role)
            types = (type_text(old.value), type_text(new.value))
            if old.shape != new.shape:
                reshaped[address] = types
            elif types[0] != types[1]:
                retyped[address] = types
            elif not same_values(old.value, new.value):
                change = _largest_change(old.value, new.value)
                # The sign of a zero is a difference too, though not one in size.
                if change > tolerance or tolerance == 0:
                    changed[address] = change
        return cls(
            added=tuple(address for address in after if address not in before),
            removed=tuple(address for address in before if address not in after),
            reshaped=reshaped,
            retyped=retyped,
            reroled=reroled,
            changed=dict(sorted(changed.items(), key=lambda entry: -entry[1])),
        )

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in attrs.fields(Diff))

    def __str__(self) -> str:
        if not self:
            return "no differences"
        rows = [("added", address, "") for address in self.added]
        rows += [("removed", address, "") for address in self.removed]
        for kind in ("reshaped", "retyped", "reroled"):
            rows += [(kind, address, f"{old} → {new}") for address, (old, new) in getattr(self, kind).items()]
        rows += [("changed", address, f"by up to {change:.4g}") for address, change in self.changed.items()]
        kinds = dict.fromkeys(kind for kind, _, _ in rows)
        counts = ", ".join(f"{sum(row[0] == kind for row in rows)} {kind}" for kind in kinds)
        return counts + "\n" + columns([(f"  {kind:<8}", *row) for kind, *row in rows], [False] * 3)

    __repr__ = __str__


def _largest_change(before: Any, after: Any) -> float:
    old, new = np.ravel(np.asarray(before)), np.ravel(np.asarray(after))
    if old.dtype.kind in "biu":
        wide = "uint64" if old.dtype.kind == "u" else "int64"
        old, new = old.astype(wide), new.astype(wide)
        # Differences of int64 wrap around to what uint64 reads right.
        return float((np.maximum(old, new) - np.minimum(old, new)).view("uint64").max())
    if old.dtype.kind != "c":
        old, new = old.astype("float64"), new.astype("float64")
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(new - old)
    change[(old == new) | (np.isnan(old) & np.isnan(new))] = 0.0
    change[np.isnan(change)] = np.inf
    return float(change.max())
