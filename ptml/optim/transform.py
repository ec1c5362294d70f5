"""Transforms: what every optimizer, clip and decay is; rules, which decide a step; and chains."""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, final

import attrs
from pytensor.graph.basic import Variable

from ptml.module import Module
from ptml.optim.masks import building_for
from ptml.optim.ownership import ReusesState, enclosing, is_running, running
from ptml.optim.updates import Gradients, Steps, Updates, as_parameters, to_updates
from ptml_state import SlotVariable

__all__ = [
    "Chain",
    "Rule",
    "Transform",
    "a_rule",
    "applied",
    "as_steps",
    "chain",
    "decided",
    "parts_of",
    "shown",
    "take_step",
    "witnessed",
]

GAVE_NO_UPDATES = (
    "{transform} returned {got}. A transform returns Updates: updates.with_amounts({{parameter: amount}}), "
    "or, if it decides the step, Steps({{parameter: step}})."
)
RULE_BEHIND_RULE = (
    "{rule} stands behind another rule. A rule makes a step of gradients, and what reaches it is the step "
    "that the other one has decided. Keep one of them; scale(...), trace(...), the clips and "
    "add_weight_decay(...) act on steps as well."
)
TWO_RULES = (
    "A chain holds one rule, which makes a step of gradients; this one holds {rules}, and each behind the "
    "first would read a step as if it were a gradient. Keep one of them."
)
CALLED_WITHOUT = "The rule is the class {name}. Call it with its hyperparameters, such as {name}(1e-3)."
NO_RULE = (
    "{rule} ends in gradients: nothing in it decides a step, and to add gradients to the parameters would "
    "climb. Put a rule into it, such as chain(..., sgd(0.1))."
)
EMPTY = (
    "chain() has nothing to compose. Give it transforms, such as chain(clip_by_global_norm(1.0), adam(1e-3))."
)
TWICE = (
    "{transform} is in the chain twice, as one object, and a transform has one state: the two places "
    "would share it. Make a second one, with a namespace of its own if it keeps state."
)
NOT_A_TRANSFORM = "A chain composes transforms; got {got!r} at position {position}.{hint}"
CALL_IT = " Write {name}(...)."
NOT_A_RULE = "{who}: {argument} must be a rule, such as adam(1e-3), or a chain with one; got {got!r}."
NOT_FIRST = "{transform} has to stand first in a chain: {why}. Here {other} stands ahead of it."
WRAPS = "{transform} stands {where}: {why}. It wraps the whole instead: {name}(chain(...), ...)."
NOT_LAST = "{transform} has to stand last in a chain: {why}. Here {other} stands behind it."

#: What is told of each transform that has run: itself, the updates it was given, and those that it gave.
_witness: ContextVar[Callable[[Any, Updates, Updates], None] | None] = ContextVar("witness", default=None)


class Transform(Module, abc.ABC):
    """What every rule, clip, decay and chain is: a frozen value that turns gradients or steps into others.

    A subclass says in ``apply(updates, parameters)`` what comes out. Where it stands in a chain decides
    whether it is given :class:`Gradients`, ahead of the rule, or :class:`Steps`, behind it.

    Examples
    --------
    >>> from ptml.optim import Transform, chain, sgd
    >>> class Sign(Transform):
    ...     def apply(self, updates, parameters):
    ...         return updates.with_amounts(
    ...             {p: amount / abs(amount) for p, amount in updates.amounts.items()}
    ...         )
    >>> chain(Sign(), sgd(0.1))
    Chain(Sign(), Sgd(0.1))
    """

    #: Why it has to stand first, or last, in a chain, where it does.
    _first: ClassVar[str | None] = None
    _last: ClassVar[str | None] = None
    #: Why it wraps a whole rule, and stands inside of no other transform but those that do too.
    _wraps: ClassVar[str | None] = None

    @abc.abstractmethod
    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        """Give the updates that come out; `updates` has an amount for each parameter that moves."""

    def __call__(self, loss_gradients_or_updates: Any, parameters: Iterable[SlotVariable]) -> Updates:
        """Build updates.

        Parameters
        ----------
        loss_gradients_or_updates : scalar tensor, sequence, mapping or Updates
            A loss, which is differentiated; gradients, one for each parameter, in a sequence or by
            handle; or what another transform gave.
        parameters : sequence of handles
            What to move.

        Returns
        -------
        Updates
            `Steps` from a rule on; `Gradients` before.

        Raises
        ------
        TypeError, ValueError
            As :func:`ptml.optim.get_gradients` does.
        ValueError
            If a rule is given steps.
        """
        handles = as_parameters(parameters)
        given = loss_gradients_or_updates
        updates = to_updates(given, handles)
        parts = [given] if isinstance(given, Variable) else None
        with running(self, updates.holds), building_for(parts, handles):
            self._refuse_inside()
            made = updates.carried_on(_checked(self.apply(updates, handles), self))
        _tell(self, updates, made)
        return made

    def _refuse_inside(self) -> None:
        for outer in enclosing() if self._wraps is not None else ():
            if isinstance(outer, Transform) and outer._wraps is None:
                raise ValueError(_to_wrap(self, f"inside of {outer!r}"))


def _to_wrap(transform: Any, where: str) -> str:
    name = type(transform).__name__
    return WRAPS.format(transform=repr(transform), where=where, why=transform._wraps, name=name)


def applied(transform: Any, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
    """Apply a transform, or a function of updates and parameters, inside of another transform."""
    if isinstance(transform, Transform):
        return transform(updates, parameters)
    # Functions look up what they are given: they are given what moves.
    moving = [parameter for parameter in parameters if parameter in updates.amounts]
    with running(transform, updates.holds):
        made = updates.carried_on(_checked(transform(updates, moving), transform))
    _tell(transform, updates, made)
    return made


def decided(rule: Any, updates: Updates, parameters: Sequence[SlotVariable]) -> Steps:
    """Give the steps that a rule, or a function, decides on inside of another transform."""
    return as_steps(applied(rule, updates, parameters), shown(rule))


def _tell(transform: Any, given: Updates, made: Updates) -> None:
    tell = _witness.get()
    if tell is not None:
        tell(transform, given, made)


@contextlib.contextmanager
def witnessed(tell: Callable[[Any, Updates, Updates], None]) -> Iterator[None]:
    """Be told of each transform that has run: itself, what it was given, and what it gave."""
    token = _witness.set(tell)
    try:
        yield
    finally:
        _witness.reset(token)


def _checked(updates: Any, transform: Any) -> Updates:
    if not isinstance(updates, Updates):
        raise TypeError(GAVE_NO_UPDATES.format(transform=shown(transform), got=type(updates).__name__))
    return updates


def shown(transform: Any) -> str:
    """Write a transform, or a function in the place of one, for people."""
    return (
        repr(transform)
        if isinstance(transform, Module)
        else getattr(transform, "__qualname__", repr(transform))
    )


def a_rule(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate that a value is a transform, or a function that may be one."""
    if isinstance(value, type):
        raise TypeError(CALLED_WITHOUT.format(name=value.__name__.lower()))
    if not callable(value):
        raise TypeError(NOT_A_RULE.format(who=type(module).__name__, argument=field.alias, got=value))


def parts_of(transform: Any) -> list[Module]:
    """Give a transform and those that it holds, once each."""
    found: dict[int, Module] = {}
    pending = [transform]
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending.extend(value)
        elif isinstance(value, Transform | ReusesState) and id(value) not in found:
            found[id(value)] = value
            pending.extend(getattr(value, field.name) for field in attrs.fields(type(value)))
    return list(found.values())


class Rule(Transform):
    """A transform that decides: it takes gradients, and gives the step to make.

    A subclass says in ``decide(gradients, parameters)`` what the step is.

    Examples
    --------
    >>> from ptml.optim import Rule
    >>> class Descend(Rule):
    ...     rate: float
    ...
    ...     def decide(self, gradients, parameters):
    ...         return gradients.to_steps({p: -self.rate * g for p, g in gradients.amounts.items()})
    >>> Descend(rate=0.1)
    Descend(rate=0.1)
    """

    @abc.abstractmethod
    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        """Give the steps; ``gradients.to_steps(amounts)`` makes them."""

    @final
    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        if not isinstance(updates, Gradients):
            raise ValueError(RULE_BEHIND_RULE.format(rule=repr(self)))
        # A bare `*_updates` function comes here without being called: its clock is the rule's all the same.
        with contextlib.nullcontext() if is_running(self) else running(self, updates.holds):
            return self.decide(updates, parameters)


class Chain(Transform):
    """Transforms applied from left to right; made by :func:`chain`.

    Parameters
    ----------
    *transforms : transform, or function of ``(updates, parameters)`` that returns Updates
    """

    transforms: tuple[Callable[..., Updates], ...]
    _varargs: ClassVar[str | None] = "transforms"

    def __init__(
        self, *items: Callable[..., Updates], transforms: Sequence[Callable[..., Updates]] = ()
    ) -> None:
        self.__attrs_init__(transforms=_flat((*items, *transforms)))  # type: ignore[attr-defined]

    def __attrs_post_init__(self) -> None:
        if not self.transforms:
            raise ValueError(EMPTY)
        for position, transform in enumerate(self.transforms):
            if not callable(transform) or isinstance(transform, type):
                hint = CALL_IT.format(name=transform.__name__) if isinstance(transform, type) else ""
                raise TypeError(NOT_A_TRANSFORM.format(got=transform, position=position, hint=hint))
        for transform in self.transforms:
            if getattr(transform, "_wraps", None) is not None:
                raise ValueError(_to_wrap(transform, "in a chain"))
        # A function has no state of its own, so it may stand in several places.
        ahead: set[int] = set()
        for transform in self.transforms:
            inside = {id(one): one for one in parts_of(transform)}
            for twice in ahead & inside.keys():
                raise ValueError(TWICE.format(transform=repr(inside[twice])))
            ahead |= inside.keys()
        rules = [repr(transform) for transform in self.transforms if isinstance(transform, Rule)]
        if len(rules) > 1:
            raise ValueError(TWO_RULES.format(rules=", then ".join(rules)))
        for pair in itertools.pairwise(self.transforms):
            _check_places(*pair)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        for transform in self.transforms:
            updates = applied(transform, updates, parameters)
        return updates


def _check_places(ahead: Any, behind: Any) -> None:
    why = getattr(behind, "_first", None)
    if why is not None and getattr(ahead, "_first", None) is None:
        raise ValueError(NOT_FIRST.format(transform=repr(behind), why=why, other=shown(ahead)))
    why = getattr(ahead, "_last", None)
    if why is not None and getattr(behind, "_last", None) is None:
        raise ValueError(NOT_LAST.format(transform=repr(ahead), why=why, other=shown(behind)))


def _flat(transforms: Sequence[Any]) -> tuple[Any, ...]:
    inside = [one.transforms if isinstance(one, Chain) else (one,) for one in transforms]
    return tuple(transform for group in inside for transform in group)


def chain(*transforms: Callable[..., Updates]) -> Chain:
    """Compose transforms from left to right, each reading what the one before it produced.

    Ahead of the rule a transform sees gradients, behind it steps, and the two mean different things: a
    clip ahead of `adam` bounds a spike before it reaches the moments; behind it, it bounds a step that
    `adam` has brought to about its learning rate anyway.

    Parameters
    ----------
    *transforms : transform, or function of ``(updates, parameters)`` that returns Updates
        The first reads what the chain is called with: a loss, gradients or updates. Chains among them
        are taken apart.

    Returns
    -------
    Chain
        A transform. It owns one set of optimizer state, however many times it is called.

    Raises
    ------
    ValueError
        If there are no transforms, if two of them are rules, or one object is there twice.
    TypeError
        If one cannot be called with updates.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm, scale
    >>> stop_the_spike = chain(clip_by_global_norm(1.0), adam(1e-3))
    >>> bound_the_move = chain(adam(1e-3), clip_by_global_norm(1.0))
    >>> chain(stop_the_spike, scale(0.5))
    Chain(ClipByGlobalNorm(), Adam(), Scale(0.5))
    """
    return Chain(*transforms)


def take_step(rule: Callable[..., Updates], loss: Any, parameters: Iterable[SlotVariable]) -> Steps:
    """Give the training step that a rule makes of a loss.

    Parameters
    ----------
    rule : transform, or function of ``(loss, parameters)`` that returns Steps
    loss : scalar tensor, gradients or Updates
    parameters : sequence of handles

    Raises
    ------
    ValueError
        If what comes out is gradients: there is no rule in the chain.
    TypeError
        If it is no updates at all, or the rule is a class.
    """
    if isinstance(rule, type):
        raise TypeError(CALLED_WITHOUT.format(name=rule.__name__.lower()))
    return as_steps(_checked(rule(loss, as_parameters(parameters)), rule), shown(rule))


def as_steps(updates: Updates, source: str = "What is given as updates") -> Steps:
    """Give updates that are steps as they are.

    Parameters
    ----------
    updates : Updates
    source : str
        What they come from, for the error's text.

    Raises
    ------
    ValueError
        If they are gradients: there is no rule in what made them.
    """
    if not isinstance(updates, Steps):
        raise ValueError(NO_RULE.format(rule=source))
    return updates
