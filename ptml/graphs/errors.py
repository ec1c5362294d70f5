"""The one error of graphs as data."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["GraphError", "nearest"]


class GraphError(ValueError):
    """A graph cannot be written, or a text is no graph.

    Parameters
    ----------
    text : str
        What is wrong.
    where : str
        The place in the JSON, such as ``graph.nodes[3].op``; empty for the graph as a whole.

    Examples
    --------
    >>> raise GraphError("takes a whole number; got 'x'", "graph.nodes[3].gives[0]")
    Traceback (most recent call last):
        ...
    ptml.graphs.errors.GraphError: graph.nodes[3].gives[0]: takes a whole number; got 'x'
    """

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.text, self.where = text, where


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are closest to one that is not known; empty where none is.

    Examples
    --------
    >>> nearest("Elemwize", ["Elemwise", "Dot"])
    " The nearest is 'Elemwise'."
    >>> nearest("os.system", ["Elemwise", "Dot"])
    ''
    """
    found = difflib.get_close_matches(name[:100], list(known), n=3)
    if not found:
        return ""
    return f" The nearest {'is' if len(found) == 1 else 'are'} {', '.join(map(repr, found))}."
