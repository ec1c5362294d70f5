"""Updates: what one training step writes, kept as amounts so that nothing is lost to rounding.

``updates[p]`` is the parameter plus an amount. Were only that sum kept, a gradient of 1e-9 on a float32
parameter of 1.0 would be gone from it: so the amount is what is stored, and the sum is derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import attrs
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.tensor.type import complex_dtypes, float_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.flatten import flatten
from ptml.holds import Hold, marked
from ptml.optim.hyperparameters import working_dtype
from ptml_state import SlotVariable
from ptml_state.typetext import type_text

__all__ = ["Gradients", "Steps", "Updates", "as_parameters", "get_gradients", "steps_of", "to_updates"]

NEITHER = (
    "Updates are either Gradients, which a rule has yet to read, or Steps, which it has decided. "
    "Write Gradients({parameter: gradient}) or Steps({parameter: step})."
)
NOT_A_HANDLE = (
    "{what} is given {got} where the handle of a parameter belongs, such as fc1.W. "
    "slots(network, Role.PARAMETER) lists a network's."
)
NOT_A_LIST = "`parameters` is a list of handles, such as [fc1.W, fc1.b]; got {got}."
NO_PARAMETERS = "`parameters` is empty: there is nothing to move."
GIVEN_TWICE = "`parameters` lists {addresses} twice. List each once; tied weights are one parameter."
NOT_FLOATING = "{address!r} is {dtype}, and only floats have a gradient. Leave it out of `parameters`."
WRONG_SHAPE = (
    "{address!r} is {wanted}, and the amount given for it is {given}. An amount has its parameter's shape."
)
WRONG_DTYPE = "{address!r} is {wanted}, and the amount given for it is {given}. An amount is real."
NOT_SCALAR = (
    "A loss is a floating-point scalar; got {given}. Take its mean() or sum() to train on it. "
    "Gradients that are known already are given as a list, one for each parameter."
)
NOT_REACHED = (
    "The loss does not depend on {addresses}. Leave {them} out of `parameters`, or check that "
    "the loss is computed by the layers that own {them}."
)
WRONG_COUNT = (
    "{gradients} gradients are given for {parameters} parameters: {addresses}. Give one for each, in order."
)
MISSING = (
    "No gradient is given for {addresses}. Give one for each parameter, or leave {them} out of `parameters`."
)
NO_GRADIENTS = "A loss, gradients (a list, or a mapping from handles) or Updates are wanted; got {got}."
ARE_STEPS = "{what} wants gradients, and these are Steps, which a rule has decided already."
NOT_UPDATED = "{handle} has no new value among these: {known}."


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _list(handles: Iterable[SlotVariable]) -> str:
    return ", ".join(handle.slot.address for handle in handles)


def _them(handles: Sequence[SlotVariable]) -> str:
    return "it" if len(handles) == 1 else "them"


def _handle(value: Any, what: str) -> SlotVariable:
    if not isinstance(value, SlotVariable):
        raise TypeError(NOT_A_HANDLE.format(what=what, got=_shown(value)))
    return value


def _fitted(parameter: SlotVariable, amount: Any) -> TensorVariable:
    """Give an amount that fits its parameter: its shape, and the dtype that a rule computes in."""
    amount = pt.as_tensor(amount)
    address, wanted = parameter.slot.address, parameter.type.shape
    clash = amount.ndim != len(wanted) or any(
        given not in (None, size) for given, size in zip(amount.type.shape, wanted, strict=True)
    )
    if clash:
        raise ValueError(
            WRONG_SHAPE.format(
                address=address, wanted=type_text(parameter.type), given=type_text(amount.type)
            )
        )
    if amount.type.dtype in complex_dtypes:
        raise TypeError(
            WRONG_DTYPE.format(
                address=address, wanted=type_text(parameter.type), given=type_text(amount.type)
            )
        )
    # Where the parameter has length one, an amount of unknown length could broadcast it.
    unsure = [axis for axis, given in enumerate(amount.type.shape) if given is None and wanted[axis] == 1]
    if unsure:
        amount = pt.specify_broadcastable(amount, *unsure)
    return pt.cast(amount, working_dtype(parameter))


def _fit_amounts(amounts: Mapping[SlotVariable, Any]) -> dict[SlotVariable, TensorVariable]:
    return {
        _handle(parameter, "Updates"): _fitted(parameter, amount) for parameter, amount in amounts.items()
    }


def _as_holds(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    return tuple(holds)


def _as_state(state: Mapping[SlotVariable, Any]) -> dict[SlotVariable, TensorVariable]:
    return {_handle(handle, "Updates"): pt.as_tensor(value) for handle, value in state.items()}


@attrs.frozen(eq=False, repr=False, slots=False)
class Updates(Mapping[SlotVariable, TensorVariable]):
    """What one training step writes: an immutable mapping from handles to their new values.

    It stores an amount for each parameter, and the new values of the optimizer's state;
    ``updates[p]`` is derived as ``p`` plus its amount. It is one of two kinds, :class:`Gradients` and
    :class:`Steps`: where a transform stands in a chain decides which of the two it is given.

    Parameters
    ----------
    amounts : mapping
        From the handle of a parameter to what is added to it, of its shape. Cast to its dtype (float32
        for half precision, so that a sum of small amounts is rounded once).
    state : mapping, optional
        From other handles to their new values.
    loss : scalar tensor, optional
        What they lessen, where it is known: None where gradients were given.
    holds : sequence of Hold, optional
        What may hold back all that is written from here on: a window of :func:`ptml.optim.accumulate` that is
        still filling, or a guard. The new values that the mapping gives are marked with it.

    Raises
    ------
    TypeError
        If a key is no handle.
    ValueError
        If an amount cannot have its parameter's shape.
    """

    _amounts: dict[SlotVariable, TensorVariable] = attrs.field(converter=_fit_amounts)
    _state: dict[SlotVariable, TensorVariable] = attrs.field(factory=dict, converter=_as_state)
    loss: TensorVariable | None = attrs.field(default=None, kw_only=True)
    holds: tuple[Hold, ...] = attrs.field(default=(), converter=_as_holds, kw_only=True)
    _values: dict[SlotVariable, TensorVariable] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        if type(self) is Updates:
            raise TypeError(NEITHER)

    # A mapping compares by its items, and these are expressions, which do not compare.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def amounts(self) -> dict[SlotVariable, TensorVariable]:
        """What is added to each parameter, as a new dict."""
        return dict(self._amounts)

    @property
    def state(self) -> dict[SlotVariable, TensorVariable]:
        """The new values of everything else, as a new dict."""
        return dict(self._state)

    def with_amounts(self, amounts: Mapping[SlotVariable, Any]) -> Self:
        """Give updates of the same kind and state with other amounts."""
        return attrs.evolve(self, amounts=amounts)

    def with_state(self, state: Mapping[SlotVariable, Any], *, free: bool = False) -> Self:
        """Give updates that write these values too; one that was written already is replaced.

        Parameters
        ----------
        state : mapping
            From handles to new values.
        free : bool, default False
            Whether they are written while a window ahead of them is still filling too.
        """
        new = _as_state(state)
        if not free:
            new = {handle: marked(handle, value, self.holds) for handle, value in new.items()}
        return attrs.evolve(self, state={**self._state, **new})

    def held_back(self, *holds: Hold) -> Self:
        """Give updates whose amounts, and whatever is added from here on, may be held back."""
        return attrs.evolve(self, holds=(*self.holds, *holds))

    def settled(self) -> Self:
        """Give what is written in the end: amounts of zero where the parameters are held back."""
        amounts = self._amounts
        for hold in self.holds:
            amounts = {p: hold.or_nothing(amount) for p, amount in amounts.items()}
        return attrs.evolve(self, amounts=amounts, holds=())

    def carried_on(self, made: Updates) -> Updates:
        """Give what a transform made of these updates, with whatever of these it has left out.

        A transform may make its updates from nothing but amounts and state; what the ones ahead of it write
        and what holds it back are not lost by that.
        """
        if made is self:
            return made
        ahead = [hold for hold in self.holds if hold not in made.holds]
        own = {h: value for h, value in made._state.items() if value is not self._state.get(h)}
        if ahead:
            own = {handle: marked(handle, value, ahead) for handle, value in own.items()}
        return attrs.evolve(made, state={**self._state, **own}, holds=(*ahead, *made.holds))

    def __getitem__(self, handle: SlotVariable) -> TensorVariable:
        if handle in self._state:
            return self._state[handle]
        if handle not in self._amounts:
            raise KeyError(
                NOT_UPDATED.format(handle=getattr(handle, "name", None) or handle, known=_list(self))
            )
        if handle not in self._values:
            amount = self._amounts[handle]
            moved = pt.cast(pt.cast(handle, amount.dtype) + amount, handle.type.dtype)
            self._values[handle] = marked(handle, moved, self.holds)
        return self._values[handle]

    def __iter__(self) -> Iterator[SlotVariable]:
        return iter({**self._amounts, **self._state})

    def __len__(self) -> int:
        return len({**self._amounts, **self._state})

    def __repr__(self) -> str:
        def shown(values: Mapping[SlotVariable, TensorVariable]) -> str:
            return ", ".join(f"{handle.slot.address}: {type_text(handle.type)}" for handle in values)

        state = f", state={{{shown(self._state)}}}" if self._state else ""
        return f"{type(self).__name__}({{{shown(self._amounts)}}}{state})"


class Gradients(Updates):
    """Updates that carry gradients: the amount of a parameter is its gradient itself.

    What a rule reads. They are no training step yet: to add a gradient to a parameter is to climb.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> to_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W])
    Gradients({fc/W: float64[2,1]})
    """

    def to_steps(self, amounts: Mapping[SlotVariable, Any]) -> Steps:
        """Give the steps that a rule decided on, with this state."""
        return Steps(amounts, self._state, loss=self.loss, holds=self.holds)


class Steps(Updates):
    """Updates that carry steps: the amount of a parameter is the move that a rule decided on, signed.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> from ptml.optim import sgd
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> sgd(0.1, momentum=0.9)((fc(pt.matrix("X")) ** 2).mean(), [fc.W])
    Steps({fc/W: float64[2,1]}, state={sgd/velocity/fc/W: float64[2,1]})
    """


def as_parameters(parameters: Iterable[SlotVariable]) -> tuple[SlotVariable, ...]:
    """Check a list of parameters.

    Raises
    ------
    TypeError
        If it is no list, or holds what is no handle or no floating-point one.
    ValueError
        If it is empty, or lists a parameter twice.
    """
    if isinstance(parameters, Variable | str) or not isinstance(parameters, Iterable):
        raise TypeError(NOT_A_LIST.format(got=_shown(parameters)))
    handles = tuple(_handle(parameter, "`parameters`") for parameter in parameters)
    if not handles:
        raise ValueError(NO_PARAMETERS)
    for handle in handles:
        if handle.type.dtype not in float_dtypes:
            raise TypeError(NOT_FLOATING.format(address=handle.slot.address, dtype=handle.type.dtype))
    twice = [handle for handle, count in Counter(handles).items() if count > 1]
    if twice:
        raise ValueError(GIVEN_TWICE.format(addresses=_list(twice)))
    return handles


def get_gradients(loss_or_gradients: Any, parameters: Iterable[SlotVariable]) -> list[TensorVariable]:
    """Differentiate a loss, or pass gradients through that are known already.

    Parameters
    ----------
    loss_or_gradients : scalar tensor, sequence, mapping or Gradients
        A loss; or gradients, one for each parameter, in a sequence or by handle.
    parameters : sequence of handles

    Returns
    -------
    list of tensors
        A gradient for each parameter, in order, of its shape.

    Raises
    ------
    TypeError
        If what is given is none of these, or is steps that a rule has decided.
    ValueError
        If the loss is no scalar, or does not depend on a parameter; if a gradient is missing or has
        another shape than its parameter.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1)
    >>> [g.ndim for g in get_gradients((fc(pt.matrix("X")) ** 2).mean(), [fc.W, fc.b])]
    [2, 1]
    """
    handles = as_parameters(parameters)
    given = loss_or_gradients
    if isinstance(given, Steps):
        raise TypeError(ARE_STEPS.format(what="get_gradients"))
    if isinstance(given, Updates):
        given = given.amounts
    if isinstance(given, Variable):
        gradients = _differentiate(given, handles)
    elif isinstance(given, Mapping):
        missing = [handle for handle in handles if handle not in given]
        if missing:
            raise ValueError(MISSING.format(addresses=_list(missing), them=_them(missing)))
        gradients = [given[handle] for handle in handles]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != len(handles):
            raise ValueError(
                WRONG_COUNT.format(gradients=len(given), parameters=len(handles), addresses=_list(handles))
            )
        gradients = list(given)
    else:
        raise TypeError(NO_GRADIENTS.format(got=_shown(given)))
    return [_fitted(handle, gradient) for handle, gradient in zip(handles, gradients, strict=True)]


def _differentiate(loss: Variable, handles: Sequence[SlotVariable]) -> list[TensorVariable]:
    if not isinstance(loss, TensorVariable) or loss.ndim != 0 or loss.type.dtype not in float_dtypes:
        given = type_text(loss.type) if isinstance(loss, TensorVariable) else str(loss.type)
        raise ValueError(NOT_SCALAR.format(given=given))
    # The gradient of nested graphs is nested graphs in turn, which cost more to build and to rewrite.
    [flat] = flatten([loss])
    gradients = grad(
        flat, list(handles), disconnected_inputs="ignore", return_disconnected="none", add_names=False
    )
    missing = [handle for handle, gradient in zip(handles, gradients, strict=True) if gradient is None]
    if missing:
        raise ValueError(NOT_REACHED.format(addresses=_list(missing), them=_them(missing)))
    return list(gradients)


def to_updates(loss_gradients_or_updates: Any, parameters: Iterable[SlotVariable]) -> Updates:
    """Give updates as they are, and a loss or gradients as :class:`Gradients`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Updates
        As for :func:`get_gradients`, or updates.
    parameters : sequence of handles

    Raises
    ------
    TypeError, ValueError
        As :func:`get_gradients` does.
    """
    if isinstance(loss_gradients_or_updates, Updates):
        return loss_gradients_or_updates
    handles = as_parameters(parameters)
    given = loss_gradients_or_updates
    gradients = get_gradients(given, handles)
    return Gradients(
        dict(zip(handles, gradients, strict=True)), loss=given if isinstance(given, TensorVariable) else None
    )


def steps_of(updates: Updates, parameters: Iterable[SlotVariable]) -> list[TensorVariable]:
    """Give the amount by which updates move each parameter.

    Parameters
    ----------
    updates : Updates
    parameters : sequence of handles

    Raises
    ------
    KeyError
        If the updates have no amount for a parameter.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> g = pt.matrix("g")
    >>> steps_of(Gradients({fc.W: g}), [fc.W])[0].type.shape
    (None, 1)
    """
    amounts = updates.amounts
    handles = as_parameters(parameters)
    for handle in handles:
        if handle not in amounts:
            raise KeyError(NOT_UPDATED.format(handle=handle.slot.address, known=_list(amounts)))
    return [amounts[handle] for handle in handles]
