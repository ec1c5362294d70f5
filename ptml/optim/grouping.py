"""Groups of parameters: each moved by a rule of its own, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.optim.masks import a_mask, addressed, masked
from ptml.optim.ownership import sharing_clocks
from ptml.optim.transform import Rule, Transform, a_rule, decided
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable, where

__all__ = ["Freeze", "Partition", "freeze", "partition"]

FREEZE_BEHIND = (
    "{freeze} stands ahead of the rule, so that nothing is computed for what it freezes: chain({freeze}, "
    "adam(1e-3)). Here a rule has decided its steps already."
)
FREEZES_NONE = "{freeze} matches none of the parameters: {addresses}."
FREEZES_ALL = "{freeze} leaves nothing to train: it freezes {addresses}."
NO_GROUPS = (
    "partition takes a mapping from selectors to rules, such as partition({{'encoder/**': adam(1e-4)}}, "
    "otherwise=adam(1e-3)); got {got!r}."
)
SAME_SELECTOR = "partition: the selector {selector!r} is there twice."
MATCHES_NONE = "partition: {selector!r} matches none of the parameters: {addresses}."
TWO_GROUPS = (
    "partition: {address!r} is in two groups, {first!r} and {second!r}. Leave it out of one: "
    "where({first!r}) & ~where({second!r})."
)
NO_GROUP = "partition: {addresses} {are} in no group. Add one, or say what becomes of the rest by otherwise=."
ALL_FROZEN = "{partition} leaves nothing to train: all its groups are frozen."
WRITES_CLOCK = (
    "partition: {first!r} and {second!r} both count on {address!r}, and a transform in one of them writes "
    "it. Give a rule in one of the two groups a namespace of its own, such as namespace='fast'."
)


def _listed(addresses: Iterable[str]) -> str:
    listed = list(addresses)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


class Freeze(Transform, kw_only=False):
    """Keep parameters as they are: no gradient of theirs is computed, and no moments are kept.

    It stands first in a chain, or as a rule of :func:`partition`, where ``freeze()`` stands for the whole
    group. The parameters stay in the state, and are saved and loaded with it. Running statistics are no
    parameters: those of a frozen layer move on.

    Parameters
    ----------
    where : where, or function of a parameter, optional
        What is frozen: an address or a pattern, a handle, a type of layer, ...; everything unless given.

    Raises
    ------
    KeyError
        When it is called, if a name in `where` matches no parameter.
    ValueError
        When it is called, if `where` matches none or all of the parameters, or a rule stands ahead of it.

    Examples
    --------
    >>> from ptml.optim import adam, chain
    >>> chain(Freeze("embedding"), adam(1e-3))
    Chain(Freeze('embedding'), Adam())
    """

    where: Any = attrs.field(default=None, validator=a_mask)
    _first: ClassVar[str | None] = "what stands ahead of it would read gradients that it does without"

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        if not isinstance(updates, Gradients):
            raise ValueError(FREEZE_BEHIND.format(freeze=repr(self)))
        frozen = masked(self.where, parameters)
        addresses = _listed(one.address for one in addressed(parameters))
        if not frozen:
            raise ValueError(FREEZES_NONE.format(freeze=repr(self), addresses=addresses))
        left = {p: amount for p, amount in updates.amounts.items() if p not in frozen}
        if not left:
            raise ValueError(FREEZES_ALL.format(freeze=repr(self), addresses=addresses))
        return updates.with_amounts(left)


def _pairs(groups: Any) -> tuple[tuple[Any, Any], ...]:
    pairs = tuple(groups.items()) if isinstance(groups, Mapping) else groups
    if (
        not isinstance(pairs, tuple)
        or not pairs
        or not all(isinstance(p, tuple) and len(p) == 2 for p in pairs)
    ):
        raise TypeError(NO_GROUPS.format(got=groups))
    return pairs


def _groups(module: Any, field: attrs.Attribute, value: Any) -> None:
    selectors: list[Any] = []
    for selector, rule in value:
        where(selector)
        if any(selector is one or (type(selector) is type(one) and selector == one) for one in selectors):
            raise ValueError(SAME_SELECTOR.format(selector=selector))
        selectors.append(selector)
        a_rule(module, field, rule)


class Partition(Rule, kw_only=False):
    """Move groups of parameters by a rule each.

    The loss is differentiated once, for all groups, and the rules run side by side, each on the gradients of
    its group: a clip by the global norm inside one sees that group's norm. Rules of one namespace have their
    moments side by side and one clock, so ``partition({"encoder": adam(1e-4)}, otherwise=adam(1e-3))`` goes
    on from the state of ``adam(1e-3)``.

    Parameters
    ----------
    groups : mapping from where to rule
        From what selects a group's parameters (an address or a pattern, a handle, a type of layer, a function
        of a parameter) to what moves them: a rule, a chain with one, a function of gradients and parameters,
        or ``freeze()``.
    otherwise : rule, optional
        What moves the parameters that are in no group.

    Raises
    ------
    TypeError
        If `groups` is no mapping, or what should be a rule is none.
    KeyError
        When it is called, if a name in a selector matches no parameter.
    ValueError
        When it is called, if a selector matches nothing; if a parameter is in two groups, or in none where
        there is no `otherwise`; if all groups are frozen; or if a rule decides no step.

    Examples
    --------
    >>> from ptml.optim import adam, sgd
    >>> Partition({"embedding": freeze(), "head": sgd(0.1)}, otherwise=adam(1e-3))
    Partition({'embedding': Freeze(), 'head': Sgd(0.1)}, otherwise=Adam())
    """

    groups: tuple[tuple[Any, Any], ...] = attrs.field(converter=_pairs, validator=_groups)
    otherwise: Any = attrs.field(default=None, validator=attrs.validators.optional(a_rule), kw_only=True)

    def _shown_fields(self) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = super()._shown_fields()
        return [dict(self.groups), *positional[1:]], keywords

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        amounts: dict[SlotVariable, TensorVariable] = {}
        state: dict[SlotVariable, TensorVariable] = {}
        clocks: dict[str, tuple[SlotVariable, Any, bool]] = {}
        for selector, rule, members in self._divided(gradients, parameters):
            moving = {p: gradients.amounts[p] for p in members if p in gradients.amounts}
            if not moving or (isinstance(rule, Freeze) and rule.where is None):
                continue
            known = {name: clock for name, (clock, _, _) in clocks.items()}
            with sharing_clocks(known) as read:
                steps = decided(rule, gradients.with_amounts(moving), list(moving))
            for name, clock in read.items():
                _, other, written = clocks.get(name, (clock, selector, False))
                written |= clock in steps.state
                if written and name in clocks:
                    raise ValueError(WRITES_CLOCK.format(first=other, second=selector, address=name))
                clocks[name] = (clock, other, written)
            amounts |= steps.amounts
            state |= steps.state
        if not amounts:
            raise ValueError(ALL_FROZEN.format(partition=repr(self)))
        ordered = {p: amounts[p] for p in gradients.amounts if p in amounts}
        return gradients.to_steps(ordered).with_state(state, free=True)

    def _divided(
        self, gradients: Gradients, parameters: Sequence[SlotVariable]
    ) -> list[tuple[Any, Any, list[SlotVariable]]]:
        """Give each group's selector, rule and members; `otherwise` comes last."""
        address = {one.value: one.address for one in addressed(parameters)}
        group_of: dict[SlotVariable, Any] = {}
        divided = []
        for selector, rule in self.groups:
            members = masked(selector, parameters)
            if not members:
                raise ValueError(MATCHES_NONE.format(selector=selector, addresses=_listed(address.values())))
            for member in members:
                if member in group_of:
                    raise ValueError(
                        TWO_GROUPS.format(address=address[member], first=group_of[member], second=selector)
                    )
                group_of[member] = selector
            divided.append((selector, rule, members))
        rest = [p for p in gradients.amounts if p not in group_of]
        if rest and self.otherwise is None:
            are = "is" if len(rest) == 1 else "are"
            raise ValueError(NO_GROUP.format(addresses=_listed(address[p] for p in rest), are=are))
        return [*divided, ("otherwise", self.otherwise, rest)]


freeze = Freeze
partition = Partition
