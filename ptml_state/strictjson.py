"""Reading JSON that somebody else wrote: bounded in size and depth, and nothing read in two ways.

Python's reader takes the last of two equal names, NaN where JSON has none, and ``1e999`` for infinity. Here
each of these is an error that says where in the text it stands.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

__all__ = ["DEEPEST", "LARGEST", "JSONError", "json_text", "parse_json", "place", "read_json", "short"]

#: How many lists and objects may stand inside one another.
DEEPEST = 200

#: The bytes that a text may have.
LARGEST = 1 << 26

# Python itself refuses to read longer whole numbers, unless somebody told it otherwise.
_MOST_DIGITS = 4000

# Rows of a written text are no longer, where what stands in them can be broken.
_WIDTH = 100


class JSONError(ValueError):
    """A text is no JSON that is taken. The message says where and why, and begins a clause.

    Parameters
    ----------
    text : str
        What is wrong.
    where : str
        The place in the text, as :func:`place` writes it; empty for the text as a whole.
    """

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.text, self.where = text, where


@attrs.frozen
class _Refused:
    """Stands where a number was that is not taken, until it is known where that is."""

    why: str


def parse_json(
    text: str | bytes, *, what: str = "the text", largest: int = LARGEST, deepest: int = DEEPEST
) -> Any:
    """Read JSON.

    Parameters
    ----------
    text : str or bytes
        The text; bytes are UTF-8.
    what : str
        What errors call it.
    largest : int
        The bytes, or characters, that it may have; 64 MiB unless given.
    deepest : int
        How many lists and objects may stand inside one another; 200 unless given.

    Returns
    -------
    dict, list, str, int, float, bool or None

    Raises
    ------
    JSONError
        If it is too long or too deep, no JSON, names something twice in one object, or has a number
        beyond the range of float64, a whole number of more than 4,000 digits, or characters that are none.

    Examples
    --------
    >>> parse_json('{"rates": [0.1, 1e-3]}')
    {'rates': [0.1, 0.001]}
    >>> parse_json('{"layers": [{"n": 1, "n": 2}]}')
    Traceback (most recent call last):
        ...
    ptml_state.strictjson.JSONError: layers[0]: 'n' is there twice
    """
    if len(text) > largest:
        raise JSONError(f"{what} is longer than {largest} bytes")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JSONError(f"{what} is no UTF-8: byte {error.start} starts no character") from None
    twice: dict[int, str] = {}
    # Objects are kept alive until they were looked at, so that no two have one id.
    objects: list[dict[str, Any]] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                twice[id(made)] = name
            made[name] = value
        objects.append(made)
        return made

    try:
        value = json.loads(
            text,
            object_pairs_hook=make_object,
            parse_int=_whole,
            parse_float=_real,
            parse_constant=lambda name: _Refused(f"{name} is no JSON"),
        )
    except RecursionError:
        raise JSONError(f"{what} is nested more than {deepest} deep") from None
    except json.JSONDecodeError as error:
        raise JSONError(
            f"{what} is no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    _check(value, twice, what, deepest)
    return value


def _whole(digits: str) -> Any:
    if len(digits) > _MOST_DIGITS:
        return _Refused(f"a whole number of {len(digits)} digits is longer than {_MOST_DIGITS}")
    return int(digits)


def _real(digits: str) -> Any:
    value = float(digits)
    return value if math.isfinite(value) else _Refused(f"{short(digits)} is beyond the range of float64")


def _check(value: Any, twice: dict[int, str], what: str, deepest: int) -> None:
    """Look at every value once, in order, without a call inside a call."""
    at: list[str | int] = []
    inside: list[Iterator[tuple[str | int, Any]]] = [iter([("", value)])]
    while inside:
        found = next(inside[-1], None)
        if found is None:
            inside.pop()
            continue
        at[len(inside) - 1 :] = [found[0]]
        item = found[1]
        where = at[1:]
        if isinstance(item, _Refused):
            raise JSONError(item.why, place(where))
        if isinstance(item, str) and not _is_text(item):
            raise JSONError(f"{short(item)} has half a character", place(where))
        if not isinstance(item, dict | list):
            continue
        if len(inside) > deepest:
            raise JSONError(f"{what} is nested more than {deepest} deep")
        if id(item) in twice:
            raise JSONError(f"{short(twice[id(item)])} is there twice", place(where))
        for name in item if isinstance(item, dict) else ():
            if not _is_text(name):
                raise JSONError(f"the name {short(name)} has half a character", place(where))
        inside.append(iter(item.items()) if isinstance(item, dict) else enumerate(item))


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def place(keys: Iterable[str | int]) -> str:
    """Write where in a JSON value something stands.

    Parameters
    ----------
    keys : iterable of str or int
        The names and indices that lead there.

    Examples
    --------
    >>> place(["module", "layers", 2, "n_out"])
    'module.layers[2].n_out'
    """
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        elif key.isascii() and key.replace("@", "").isidentifier() and len(key) <= 60:
            text += f".{key}" if text else key
        else:
            text += f"[{short(key)}]"
    return text


def read_json(path: str | os.PathLike[str], *, largest: int = LARGEST, deepest: int = DEEPEST) -> Any:
    """Read a JSON file, as :func:`parse_json` does.

    Parameters
    ----------
    path : str or path
        The file.
    largest, deepest : int
        As for :func:`parse_json`. A longer file is not read at all.

    Raises
    ------
    JSONError
        As :func:`parse_json` does, and if the path is no regular file. The message does not name the file:
        who reads it knows more to say.
    FileNotFoundError
        If there is none.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "numbers.json"
    ...     _ = path.write_text("[1, 2.5]")
    ...     read_json(path)
    [1, 2.5]
    """
    path = Path(path)
    # Looked at before it is opened: opening a pipe waits for somebody to write to it.
    if not stat.S_ISREG(path.stat().st_mode):
        raise JSONError("the file is no regular file")
    with path.open("rb") as file:
        content = file.read(largest + 1)
    return parse_json(content, what="the file", largest=largest, deepest=deepest)


def json_text(value: Any) -> str:
    """Write JSON for people: what fits into a line stands in one.

    Parameters
    ----------
    value : dict, list, str, int, float, bool or None
        What to write; floats are finite.

    Returns
    -------
    str
        Ends in a newline. The same value gives the same text.

    Raises
    ------
    ValueError
        If a float is not finite.

    Examples
    --------
    >>> print(json_text({"short": [1, 2], "long": ["x" * 60, "y" * 60]}), end="")
    {
      "short": [1, 2],
      "long": [
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
      ]
    }
    """
    return _rows(value, "") + "\n"


def _rows(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        names = (json.dumps(name, ensure_ascii=False) for name in value)
        rows = [
            f"{deeper}{name}: {_rows(item, deeper)}" for name, item in zip(names, value.values(), strict=True)
        ]
    else:
        rows = [deeper + _rows(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(rows) + f"\n{indent}{closing}"


def short(value: Any) -> str:
    """Write a value of somebody else's into an error: as JSON has it, printable, and no longer than a line.

    Examples
    --------
    >>> short("n_out"), short([1, 2]), short(None), len(short("x" * 1000))
    ("'n_out'", 'a list', 'null', 61)
    """
    match value:
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 10_000:
            return f"a number of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
