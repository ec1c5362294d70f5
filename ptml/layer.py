"""Layers: modules with a name and a call, which builds a graph."""

from __future__ import annotations

import re
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import attrs
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import _vectorize_node, vectorize_graph
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorVariable

from ptml.application import Application, Reading, next_ordinal, restored_ordinal
from ptml.axes import axes_of, declare_axes
from ptml.marks import advanced_in_call
from ptml.module import Module
from ptml_state import Role, SlotVariable

__all__ = ["DefaultName", "Layer", "LayerGradient", "LayerOp", "name_by_keyword"]

NAME_IS_NO_STRING = "{cls}'s `name` must be a string; got {given!r}. Write {cls}({suggestion})."
TOO_MANY_POSITIONAL = (
    "{cls} takes its name by position and every hyperparameter by keyword; got {count} positional arguments. "
    "Write {cls}({suggestion})."
)
NAME_BY_KEYWORD = (
    "{cls} takes {wanted} by position, and its name and everything else by keyword; got {count} positional "
    "arguments. Write {cls}({suggestion})."
)
WRONG_COUNT = "{layer} takes {wanted} tensor(s) in a call; got {given}."
BAD_NAME = (
    "{name!r} cannot name a layer: a name is one or more words joined by '/', without the characters *?[] "
    "that selectors give a meaning to."
)
_NAME = re.compile(r"[^/*?\[\]]+(/[^/*?\[\]]+)*")


#: The layers of graphs that were copied or pickled, by their identity.
_called: weakref.WeakValueDictionary[str, Layer] = weakref.WeakValueDictionary()


class DefaultName(str):
    """The name of a layer that was given none: its class's."""

    __slots__ = ()


def _as_name(name: Any, layer: Layer) -> str:
    if name is None:
        return DefaultName(type(layer).__name__)
    if not _NAME.fullmatch(name):
        raise ValueError(BAD_NAME.format(name=name))
    return name


_CLASS_NAME: Any = attrs.Factory(lambda self: DefaultName(type(self).__name__), takes_self=True)
_CHECKED_NAME: Any = attrs.Converter(_as_name, takes_self=True)  # type: ignore[call-overload]


def name_by_keyword() -> Any:
    """Declare the name of a layer that takes other layers by position: ``name: str = name_by_keyword()``."""
    return attrs.field(default=_CLASS_NAME, converter=_CHECKED_NAME, kw_only=True)


def _is_statistic(root: Variable) -> bool:
    return isinstance(root, SlotVariable | Application) and root.slot.role in (Role.STATISTIC, Role.CACHE)


class LayerOp(OpFromGraph):
    """The nested graph of one call of a layer, named after it.

    No gradient flows into statistics: what an application reads, an earlier one wrote.
    """

    def __init__(
        self, inputs: list[Variable], outputs: list[Variable], *, layer: Layer, **kwargs: Any
    ) -> None:
        super().__init__(inputs, outputs, name=layer.name, on_unused_input="ignore", **kwargs)
        self.layer = layer
        self.call_ordinal = next_ordinal()
        self.statistics = frozenset(k for k, root in enumerate(inputs) if _is_statistic(root))

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        pattern = super().connection_pattern(node)
        return [[False] * len(row) if k in self.statistics else row for k, row in enumerate(pattern)]

    def pullback(self, inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
        found = super().pullback(inputs, outputs, cotangents)
        return [disconnected_type() if k in self.statistics else one for k, one in enumerate(found)]

    @property
    def derivative_op_type(self) -> type[OpFromGraph]:
        return LayerGradient

    # PyTensor puts equal ops in each other's place, and the same graph may be the call of another layer.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # A copied or pickled graph is of the same layers, as its slots are the same slots.
    def __getstate__(self) -> dict[str, Any]:
        uid = vars(self.layer).setdefault("_uid", uuid.uuid4().hex)
        _called.setdefault(uid, self.layer)
        return {**vars(self), "layer_uid": uid}

    def __setstate__(self, state: dict[str, Any]) -> None:
        uid = state.pop("layer_uid")
        self.__dict__.update(state)
        vars(state["layer"]).setdefault("_uid", uid)
        self.layer = _called.setdefault(uid, state["layer"])
        self.call_ordinal = restored_ordinal(self.call_ordinal)

    def __str__(self) -> str:
        kind = type(self.layer).__name__
        return kind if isinstance(self.layer.name, DefaultName) else f"{self.layer.name}:{kind}"


class LayerGradient(OpFromGraph):
    """The nested graph of the gradient of a layer's call."""

    def __str__(self) -> str:
        return str(self.name)


@_vectorize_node.register(LayerOp)
@_vectorize_node.register(LayerGradient)
def _vectorize_nested(op: OpFromGraph, node: Apply, *batched: Variable) -> Sequence[Variable]:
    inner = op.fgraph.unfreeze()
    return vectorize_graph(list(inner.outputs), dict(zip(inner.inputs, batched, strict=True)))


class Layer(Module):
    """A module that is called on tensors.

    A subclass says in ``build(*inputs)`` what a call computes. The call gives one tensor or a tuple of
    them, computed by a nested graph that carries the layer's name, so that a printed or drawn graph
    shows the architecture. What a layer remembers, it declares under :class:`ptml.slot`.

    Parameters
    ----------
    name : str, optional
        The only positional argument, and the first part of the addresses of the layer's state. Falls
        back to the class's name; layers of one such name in a network are numbered by position.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.initializers import Ones
    >>> class Gain(ptml.Layer):
    ...     n_in: int
    ...
    ...     @ptml.slot
    ...     def scale(self):
    ...         return ptml.parameter((self.n_in,), Ones())
    ...
    ...     def build(self, X):
    ...         return X * self.scale
    >>> gain = Gain("gain", n_in=3)
    >>> gain(pt.matrix("X"))
    gain:Gain.0
    >>> ptml.init(gain, seed=0)["gain/scale"]
    array([1., 1., 1.])
    """

    # Written out, so that type checkers see that it comes by position.
    name: str = attrs.field(default=_CLASS_NAME, converter=_CHECKED_NAME, kw_only=False)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        by_position = [f.alias for f in attrs.fields(cls) if f.init and not f.kw_only]
        if by_position != ["name"]:
            if cls._varargs is None and len(args) > len(by_position):
                suggestion = ", ".join([*map(repr, args[: len(by_position)]), "name=..."])
                raise TypeError(
                    NAME_BY_KEYWORD.format(
                        cls=cls.__name__,
                        wanted=" and ".join(by_position),
                        count=len(args),
                        suggestion=suggestion,
                    )
                )
        elif cls._varargs is None:
            if args and args[0] is not None and not isinstance(args[0], str):
                raise TypeError(
                    NAME_IS_NO_STRING.format(
                        cls=cls.__name__, given=args[0], suggestion=_by_keyword(cls, args, kwargs)
                    )
                )
            if len(args) > 1:
                suggestion = ", ".join(filter(None, (repr(args[0]), _by_keyword(cls, args[1:], kwargs))))
                raise TypeError(
                    TOO_MANY_POSITIONAL.format(cls=cls.__name__, count=len(args), suggestion=suggestion)
                )
        return super().__new__(cls, *args, **kwargs)

    #: The tensors that a call takes, for the error of a wrong count; any number where None.
    n_inputs: ClassVar[int | None] = None

    def build(self, *inputs: Any, **options: Any) -> Any:
        """Give the graph of one call; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} defines no build(self, X): say there what a call computes.")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Apply the layer to tensors.

        Parameters
        ----------
        *inputs : tensor-like
            What `build` takes.
        **options
            Keyword arguments of `build`; tensors among them, and in lists and tuples, are inputs too.

        Returns
        -------
        tensor or tuple of tensors
            What `build` gives; tuples may be nested.
        """
        if self.n_inputs is not None and len(inputs) != self.n_inputs:
            raise TypeError(WRONG_COUNT.format(layer=self.name, wanted=self.n_inputs, given=len(inputs)))
        positional = [pt.as_tensor(value) for value in inputs]
        given = {name: _as_tensors(value) for name, value in options.items()}
        dummies: dict[Variable, Variable] = {}

        def dummy(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return tuple(map(dummy, value))
            if not isinstance(value, Variable) or isinstance(value, Constant):
                return value
            if value not in dummies:
                dummies[value] = declare_axes(value.type(name=value.name), axes_of(value))
            return dummies[value]

        frames = advanced_in_call.get() or []
        token = advanced_in_call.set([*frames, {}])
        try:
            built = self.build(
                *map(dummy, positional), **{name: dummy(value) for name, value in given.items()}
            )
            advanced = advanced_in_call.get()[-1]  # type: ignore[index]
        except Exception as error:
            error.add_note(f"while calling {self.name} ({type(self).__name__})")
            raise
        finally:
            advanced_in_call.reset(token)
        outputs = [pt.as_tensor(one) for one in _each(built)]
        applied = self._nested(dummies, outputs, advanced)
        for result, output in zip(applied, outputs, strict=True):
            declare_axes(result, _axes_given(output, dummies.values()))
        return _like(built, iter(applied))

    def _nested(
        self, dummies: dict[Variable, Variable], outputs: list[Variable], advanced: dict[SlotVariable, None]
    ) -> list[TensorVariable]:
        """Wrap the graph of a call in an op, its roots among the op's inputs."""
        inside = set(dummies.values())
        roots = [
            root
            for root in dict.fromkeys(graph_inputs(outputs, blockers=inside))
            if not isinstance(root, Constant) and root not in inside
        ]
        # An application reads the statistics that it moves by roots of its own.
        read = [Reading(root.slot) if root in advanced else root for root in roots]
        op = LayerOp([*dummies.values(), *roots], outputs, layer=self)
        return op(*dummies, *read, return_list=True)


def _as_tensors(value: Any) -> Any:
    """Make tensors of the arrays in an option; what else there is stays what it is."""
    if isinstance(value, list | tuple):
        return tuple(map(_as_tensors, value))
    return pt.as_tensor(value) if isinstance(value, Variable) or hasattr(value, "__array__") else value


def _axes_given(output: Variable, inputs: Iterable[Variable]) -> str | None:
    """Say what the axes of an output are: where nothing else tells, those of an input of a known layout."""
    found = axes_of(output)
    if found is not None:
        return found
    alike = (X for X in inputs if getattr(X.tag, "laid_out", False) and X.type.ndim == output.type.ndim)
    return next((axes for X in alike if (axes := axes_of(X)) is not None), None)


def _each(built: Any) -> Iterator[Any]:
    """Give the tensors in what `build` gave."""
    if isinstance(built, list | tuple):
        for one in built:
            yield from _each(one)
    else:
        yield built


def _like(built: Any, tensors: Iterator[Any]) -> Any:
    """Give tensors in the nested tuples in which `build` gave others."""
    if isinstance(built, list | tuple):
        return tuple(_like(one, tensors) for one in built)
    return next(tensors)


def _by_keyword(cls: type[Layer], values: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Write positional values as the keywords that they were probably meant for."""
    fields = [f.alias for f in attrs.fields(cls) if f.init and f.kw_only and f.alias not in kwargs]
    meant = [f"{name}={value!r}" for name, value in zip(fields, values, strict=False)]
    return ", ".join([*meant, *(f"{name}={value!r}" for name, value in kwargs.items())])
