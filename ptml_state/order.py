"""Layers without a name: whether values stand in the order of the layers that they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["in_another_order"]

ANOTHER_ORDER = """\
layers without a name are numbered by position, and stand in another order there:
  {there:<{width}}  {given}
  {here:<{width}}  {wanted}
Give names to the layers, or say with a rename which is which: {{{example!r}: ...}}."""


def in_another_order(
    given: Iterable[Any], wanted: Iterable[Any], *, there: str = "the state", here: str = "the network"
) -> str | None:
    """Say how values of numbered layers stand in another order than the layers, or None where they don't.

    Where both know a layer by the same number and it is configured otherwise, that is no other order yet: a
    rate of dropout may change. It is one where a layer that changed places is found at another number, or
    where a value is known to be another slot's.

    Parameters
    ----------
    given : iterable of Leaf
        Values.
    wanted : iterable of Leaf, or of anything alike
        What they are for.
    there, here : str
        What the two are called in the text.

    Examples
    --------
    >>> from ptml_state.leaf import Leaf, Numbered
    >>> small, large = "Linear(n_in=2, n_out=2, bias=False)", "Linear(n_in=2, n_out=2)"
    >>> given = [
    ...     Leaf(f"Linear_{k}/W", 0.0, layer=Numbered(f"Linear_{k}", c)) for k, c in [(1, small), (2, large)]
    ... ]
    >>> wanted = [
    ...     Leaf(f"Linear_{k}/W", 0.0, layer=Numbered(f"Linear_{k}", c)) for k, c in [(1, large), (2, small)]
    ... ]
    >>> in_another_order(given, given) is None
    True
    >>> print(in_another_order(given, wanted))
    layers without a name are numbered by position, and stand in another order there:
      the state    Linear_1 = Linear(n_in=2, n_out=2, bias=False), Linear_2 = Linear(n_in=2, n_out=2)
      the network  Linear_1 = Linear(n_in=2, n_out=2), Linear_2 = Linear(n_in=2, n_out=2, bias=False)
    Give names to the layers, or say with a rename which is which: {'Linear_1': ...}.
    """
    given, wanted = list(given), list(wanted)
    theirs, ours = _configurations(given), _configurations(wanted)
    differing = {label for label in theirs.keys() | ours.keys() if theirs.get(label) != ours.get(label)}
    moved = {theirs[label] for label in differing & theirs.keys()} & {
        ours[label] for label in differing & ours.keys()
    }
    if moved:
        texts = [
            ", ".join(f"{label} = {known[label]}" for label in known if label in differing)
            for known in (theirs, ours)
        ]
        return _text(there, here, *texts, example=next(label for label in theirs if theirs[label] in moved))
    # Layers that are equal as values differ as objects, which is known in the process that has them.
    at = {leaf.uid: leaf for leaf in wanted if leaf.uid is not None}
    strayed = {
        leaf.layer.label: _label(at[leaf.uid])
        for leaf in given
        if leaf.layer is not None and leaf.uid in at and at[leaf.uid].address != leaf.address
    }
    if strayed:
        texts = [", ".join(strayed), ", ".join(strayed.values())]
        return _text(there, here, *texts, example=next(iter(strayed)))
    return None


def _configurations(leaves: Iterable[Any]) -> dict[str, str]:
    return {leaf.layer.label: leaf.layer.configuration for leaf in leaves if leaf.layer is not None}


def _label(leaf: Any) -> str:
    return leaf.address.split("/")[0] if leaf.layer is None else leaf.layer.label


def _text(there: str, here: str, given: str, wanted: str, *, example: str) -> str:
    width = max(len(there), len(here))
    return ANOTHER_ORDER.format(
        there=there, here=here, given=given, wanted=wanted, example=example, width=width
    )
