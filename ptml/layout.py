"""The check of a layer's layout against the axes that an input declares."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from ptml.axes import LETTERS, axes_of
from ptml.validate import described

__all__ = ["check_layout"]

ANOTHER_LAYOUT = (
    "{who} takes {wants}; {name} has the axes {axes}. Write {name}.transpose({order}), whose axes are "
    "{becomes}."
)
NO_SUCH_AXES = "{who} takes {wants}; {name} has the axes {axes}, without {missing}."
ONE_PLACE = "DHWTL"


def check_layout(layer: Any, X: TensorVariable, wants: str) -> None:
    """Refuse an input whose declared axes lie in another order than the layer takes them.

    An input of which nothing is declared passes: nothing is known of it.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input.
    wants : str
        A letter for each axis, as in ``"NHWC"``, or those of the first and last axes with dots for any
        others between, as in ``"N...C"``, ``"...C"`` or ``"...TC"``. Between dots and end, and in the place
        of a single one of D, H, W, T and L, any other of these will do.

    Raises
    ------
    ValueError
        If the axes are in another order; the error has the transpose to write.

    Examples
    --------
    >>> from ptml.layers import BatchNorm, Input
    >>> X = Input("X", (None, 3, 32, 32), axes="NCHW")
    >>> check_layout(BatchNorm("bn", n_in=32), X, "N...C")
    Traceback (most recent call last):
        ...
    ValueError: bn (BatchNorm) takes axes N...C (batch, ..., channels); X has the axes NCHW. Write \
X.transpose(0, 2, 3, 1), whose axes are NHWC.
    """
    # What a layer gives of an input that it takes by this layout is of this layout too: see `Layer.__call__`.
    X.tag.laid_out = True
    axes = axes_of(X)
    if axes is None:
        return
    place = _place(axes, wants)
    ordered = _ordered(axes, wants, place)
    if ordered == axes:
        return
    shown = {"who": described(layer), "wants": _in_words(wants), "name": X.name or "X", "axes": axes}
    if ordered is None:
        missing = [letter for letter in wants if letter not in axes and letter not in ONE_PLACE]
        words = " and ".join(f"{letter} ({LETTERS[letter]})" for letter in missing)
        raise ValueError(NO_SUCH_AXES.format(**shown, missing=words))
    order = ", ".join(str(axes.index(letter)) for letter in ordered)
    raise ValueError(ANOTHER_LAYOUT.format(**shown, order=order, becomes=ordered))


def _in_words(wants: str) -> str:
    words = [LETTERS.get(letter, "...") for letter in wants.replace("...", ".")]
    return f"axes {wants} ({', '.join(words)})"


def _place(axes: str, wants: str) -> str | None:
    """Give the letter of a layout's only place, where the axes call theirs by another letter."""
    places = [letter for letter in wants if letter in ONE_PLACE]
    given = [letter for letter in axes if letter in ONE_PLACE]
    return places[0] if len(places) == 1 and len(given) == 1 else None


def _ordered(axes: str, wants: str, place: str | None) -> str | None:
    """Give the axes in the order of a layout, or None if it has others."""
    if place is not None:
        wants = wants.replace(place, next(letter for letter in axes if letter in ONE_PLACE))
    if "..." in wants:
        first, last = ("".join(letter for letter in part if letter in axes) for part in wants.split("..."))
        between = "".join(letter for letter in axes if letter not in first + last)
        return first + between + last
    if len(axes) != len(wants):
        return axes  # the number of axes is another check's
    places = [letter for letter in axes if letter in ONE_PLACE]
    if len(places) != sum(letter in ONE_PLACE for letter in wants) or set(wants) - set(axes) - set(ONE_PLACE):
        return None
    if set(places) == set(wants) & set(ONE_PLACE):
        return wants
    rest = iter(places)
    return "".join(next(rest) if letter in ONE_PLACE else letter for letter in wants)
