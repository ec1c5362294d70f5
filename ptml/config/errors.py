"""The one error of configs, and what it says of where."""

from __future__ import annotations

from collections.abc import Iterable

from ptml_state.strictjson import place

__all__ = ["DEEPEST", "LARGEST", "ConfigError", "WrongError", "cut"]

#: How many lists and objects of a config may stand inside one another.
DEEPEST = 120

#: The bytes that a config's text may have.
LARGEST = 1 << 24


class ConfigError(ValueError):
    """A config that cannot be read, or a module that cannot be written as one.

    The message names the file, where there is one, the place in the JSON (``module.layers[2].n_out``) and
    what is wrong there.
    """


class WrongError(Exception):
    """What is wrong at a place, before it is known in which file.

    Parameters
    ----------
    at : iterable of str or int
        The names and indices that lead to the place.
    text : str
        What is wrong there.
    """

    def __init__(self, at: Iterable[str | int], text: str) -> None:
        super().__init__(text)
        self.at, self.text = tuple(at), text

    def named(self, source: str) -> ConfigError:
        """Give the error of this for users, which names the file."""
        where = place(self.at)
        return ConfigError(f"{source}: {where}: {self.text}" if where else f"{source}: {self.text}")


def cut(text: str, longest: int = 500) -> str:
    """Shorten a text that a file may have made as long as it liked.

    Examples
    --------
    >>> cut("fits"), len(cut("x" * 10_000))
    ('fits', 500)
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
