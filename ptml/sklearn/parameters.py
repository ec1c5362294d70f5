"""The fields of layers and rules as parameters of an estimator, so that searches can try values of them."""

from __future__ import annotations

import difflib
from typing import Any, Self

import attrs
from sklearn.base import BaseEstimator

from ptml.layer import DefaultName, Layer
from ptml.module import Module
from ptml.network import replace, walk

__all__ = ["WithFields"]

NO_SUCH = "{who} has no parameter {name!r}.{hint} Its parameters are {known}."


class WithFields(BaseEstimator):
    """An estimator whose parameters may be modules.

    The field of one is a parameter too, ``rule__learning_rate``, and so is that of a named layer in a
    network, ``network__fc1__n_out``.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the parameters by name.

        Parameters
        ----------
        deep : bool, default True
            Whether to give the fields of modules among them as well.
        """
        found = super().get_params(deep=deep)
        if deep:
            for name, value in list(found.items()):
                if isinstance(value, Module):
                    found |= {f"{name}__{path}": of for path, of in _fields(value).items()}
        return found

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name.

        Parameters
        ----------
        **parameters
            Fields of modules among them: a new module takes the place of the one that there was.

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        own = {name: value for name, value in parameters.items() if "__" not in name}
        super().set_params(**own)
        for name, value in parameters.items():
            if name in own:
                continue
            head, _, path = name.partition("__")
            module = getattr(self, head, None)
            known = self.get_params()
            if name not in known or not isinstance(module, Module):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                who, names = type(self).__name__, ", ".join(sorted(known))
                raise ValueError(NO_SUCH.format(who=who, name=name, hint=hint, known=names))
            setattr(self, head, _changed(module, path, value))
        return self


def _fields(module: Module) -> dict[str, Any]:
    """Give what can be set of a module, and of the named layers in it, by path."""
    found = {field.alias: getattr(module, field.name) for field in attrs.fields(type(module)) if field.init}
    for layer in _named_layers(module):
        for field in attrs.fields(type(layer)):
            if field.init and field.name != "name":
                found[f"{layer.name}__{field.alias}"] = getattr(layer, field.name)
    return found


def _named_layers(module: Module) -> list[Layer]:
    """Give the layers in the fields of a network, and in their fields, that were given a name."""
    if not isinstance(module, Layer):
        return []
    return [
        layer
        for layer in walk(module)
        if isinstance(layer, Layer)
        and layer is not module
        and not isinstance(layer.name, DefaultName)
        and vars(layer).get("_parent") is None
    ]


def _changed(module: Module, path: str, value: Any) -> Module:
    name, _, field = path.rpartition("__")
    if not name:
        return attrs.evolve(module, **{field: value})
    layer = next(layer for layer in _named_layers(module) if layer.name == name)
    changed = attrs.evolve(layer, **{field: value})
    return replace(module, lambda member: member.value is layer, changed)
