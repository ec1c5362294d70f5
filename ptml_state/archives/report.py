"""What loading an archive does, and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from ptml_state.archives.header import ArchiveError
from ptml_state.display import columns
from ptml_state.state import State

__all__ = ["LoadReport"]

_REMEDIES = {
    "missing": 'Take first values for what is missing with missing="init".',
    "unexpected": 'Leave out what there is no place for with unexpected="ignore".',
    "retyped": 'Cast between floating-point dtypes with retyped="cast".',
    "reshaped": "Load the rest with where=, and give those another value with state.replace({...}).",
}


@attrs.frozen(repr=False)
class LoadReport:
    """What :func:`load_state` does with its arguments. From :func:`load_report`; false when nothing fits ill.

    Parameters
    ----------
    path : Path
        The file.
    loaded : tuple of str
        The addresses that take a value of the file.
    renamed : dict from str to str
        What the file calls those that have another address now.
    transposed : tuple of str
        The addresses whose arrays' axes change places.
    missing : tuple of str
        The addresses that the file has no value for: they take their first value, or are an error.
    unexpected : tuple of str
        What the file has and there is no place for: left out, or an error.
    retyped, reshaped : dict from str to (str, str)
        Both types, the file's first, of leaves of another dtype or shape. The former are cast, or an error.
    refusals : tuple of str
        Which of the above, by field, are errors, with what else is wrong.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from ptml_state import State, load_report, save_state
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     save_state(State({"fc/W": [1.0], "head/W": [2.0]}), path)
    ...     report = load_report(path, like=State({"fc/W": [0.0]}), unexpected="ignore")
    >>> report
    1 loaded, 1 unexpected
      unexpected  head/W
    >>> report.state
    State(1 leaf, 8 B: fc/W float64[1])
    """

    path: Path
    loaded: tuple[str, ...]
    renamed: dict[str, str] = attrs.field(factory=dict)
    transposed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    retyped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    reshaped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    refusals: tuple[str, ...] = ()
    _make: Callable[[], State] = attrs.field(eq=False, kw_only=True)

    @property
    def state(self) -> State:
        """The state, as :func:`load_state` gives it.

        Raises
        ------
        ArchiveError
            When the file does not fit; the message has all that is wrong.
        """
        if self.refusals:
            raise ArchiveError(self._refusal())
        return self._make()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.retyped or self.reshaped or self.refusals)

    def _rows(self, kinds: Sequence[str]) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = []
        for kind in kinds:
            entries: Any = getattr(self, kind)
            if isinstance(entries, dict):
                for one, other in entries.items():
                    here = f"from {other}" if isinstance(other, str) else f"{other[0]} → {other[1]}"
                    rows.append((f"  {kind}", one, here))
            else:
                rows += [(f"  {kind}", address, "") for address in entries]
        return rows

    def _refusal(self) -> str:
        kinds = [kind for kind in _REMEDIES if kind in self.refusals]
        others = [text for text in self.refusals if text not in _REMEDIES]
        parts = []
        if kinds:
            parts.append(f"{self.path} does not fit what it is loaded into:")
            parts.append(columns(self._rows(kinds), [False] * 3))
            if {"missing", "unexpected"} <= set(kinds):
                parts.append("Where those are the same under other names, write rename={old: new}.")
            parts += [_REMEDIES[kind] for kind in kinds]
        parts += [f"{self.path} does not fit: {text}" for text in others]
        return "\n".join(parts)

    def __repr__(self) -> str:
        kinds = ("renamed", "transposed", "missing", "unexpected", "retyped", "reshaped")
        counts = [f"{len(self.loaded)} loaded"]
        counts += [f"{len(getattr(self, kind))} {kind}" for kind in kinds if getattr(self, kind)]
        rows = self._rows(kinds)
        text = ", ".join(counts) + (f"\n{columns(rows, [False] * 3)}" if rows else "")
        return f"{text}\nRefused. {self._refusal()}" if self.refusals else text
