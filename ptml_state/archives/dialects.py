"""How others name and lay out what they save: the seeds of this library, and PyTorch."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ptml_state.archives.matching import Axes
from ptml_state.leaf import Leaf
from ptml_state.slot import Role
from ptml_state.where import where

__all__ = ["TORCH_AXES", "Dialect", "Plain", "Torch"]

TORCH_NAMES = """\
its names are PyTorch's ({example!r}), which keeps the weights of linear layers as (out, in) and of \
convolutions as (out, in, *kernel), the other way round than here; square ones would load as they lie, and \
mean something else. Write
    load_state(path, like=..., source="torch")
or say how they lie: transpose={{Linear: (1, 0)}}, or transpose={{}} where they already lie as here."""
UNKNOWN_LAYOUT = """\
how PyTorch lays out {addresses} (of {owners}) is not known here. Say which of its axes comes where, as
    transpose={{{owner}: (1, 0)}}
or, where they lie as here, (0, 1)."""

#: Where the axes of PyTorch's weights go, by the class name of the layer.
TORCH_AXES = {
    "Linear": (1, 0),
    "Conv1D": (2, 1, 0),
    "Conv2D": (2, 3, 1, 0),
    "Conv3D": (2, 3, 4, 1, 0),
    "Embedding": (0, 1),
}

_TORCH_LEAVES = {"W": "weight", "scale": "weight", "b": "bias"}


class Dialect(abc.ABC):
    """What somebody else's names and layouts mean."""

    def read(self, leaves: list[Leaf], names: list[str]) -> tuple[list[Leaf], list[str]]:
        """Give the leaves that count, with their names in the file."""
        return leaves, names

    @abc.abstractmethod
    def names(self, wanted: Iterable[Leaf]) -> dict[str, str]:
        """Say what wanted leaves are called: from names to addresses."""

    def axes(self, leaves: Sequence[Leaf], given: Axes) -> Axes:
        """Say where the axes of leaves go."""
        return given

    @abc.abstractmethod
    def doubt(self, named: Sequence[tuple[str, Leaf]], given: Axes | None) -> str | None:
        """Say why the layout of some leaves is not known, or None."""


@attrs.frozen
class Plain(Dialect):
    """The names of the seeds' library: ``fc1_W``, ``fc1_W/adam/first_moment``. Layouts are those used here.

    Examples
    --------
    >>> wanted = [Leaf("fc1/W", 0.0), Leaf("adam/first_moment/fc1/W", 0.0, Role.OPTIMIZER)]
    >>> Plain().names(wanted)
    {'fc1_W': 'fc1/W', 'fc1_W/adam/first_moment': 'adam/first_moment/fc1/W'}
    """

    def names(self, wanted: Iterable[Leaf]) -> dict[str, str]:
        wanted = list(wanted)
        own = {
            leaf.address: leaf.address.replace("/", "_")
            for leaf in wanted
            if leaf.role not in (Role.OPTIMIZER, Role.CLOCK) and "/" in leaf.address
        }
        return _unambiguous((self._name(leaf.address, own), leaf.address) for leaf in wanted)

    def _name(self, address: str, own: Mapping[str, str]) -> str:
        if address in own:
            return own[address]
        # What accompanies a parameter is called after it there, and below its kind here.
        parts = address.split("/")
        for start in range(1, len(parts)):
            of = "/".join(parts[start:])
            if of in own:
                return f"{own[of]}/{'/'.join(parts[:start])}"
        return address

    def doubt(self, named: Sequence[tuple[str, Leaf]], given: Axes | None) -> str | None:
        if given is not None:
            return None
        torchlike = (name for name, leaf in named if name.endswith(".weight") and len(leaf.shape) > 1)
        example = next(torchlike, None)
        return None if example is None else TORCH_NAMES.format(example=example)


@attrs.frozen
class Torch(Dialect):
    """The names and layouts of PyTorch's state dicts: ``encoder.fc1.weight``, axes (out, in).

    Examples
    --------
    >>> Torch().names([Leaf("encoder/fc1/W", 0.0), Leaf("bn/scale", 0.0)])
    {'encoder/fc1/weight': 'encoder/fc1/W', 'bn/weight': 'bn/scale'}
    """

    def read(self, leaves: list[Leaf], names: list[str]) -> tuple[list[Leaf], list[str]]:
        # A count that only layers without a momentum read there.
        kept = [leaf for leaf in leaves if not leaf.address.endswith("num_batches_tracked")]
        return (
            [attrs.evolve(leaf, address=leaf.address.replace(".", "/")) for leaf in kept],
            [leaf.address for leaf in kept],
        )

    def names(self, wanted: Iterable[Leaf]) -> dict[str, str]:
        named = []
        for leaf in wanted:
            path, slash, name = leaf.address.rpartition("/")
            named.append((f"{path}{slash}{_TORCH_LEAVES.get(name, name)}", leaf.address))
        return _unambiguous(named)

    def axes(self, leaves: Sequence[Leaf], given: Axes) -> Axes:
        usual = {
            leaf.address: TORCH_AXES[leaf.owner]
            for leaf in leaves
            if leaf.owner in TORCH_AXES and len(leaf.shape) == len(TORCH_AXES[leaf.owner])
        }
        return {**given, **usual}

    def doubt(self, named: Sequence[tuple[str, Leaf]], given: Axes | None) -> str | None:
        said = [(where(selector), len(order)) for selector, order in (given or {}).items()]
        unknown = [
            leaf
            for _, leaf in named
            if leaf.owner is not None
            and len(leaf.shape) > 1
            and leaf.owner not in TORCH_AXES
            and not any(len(leaf.shape) == rank and selector.matches(leaf) for selector, rank in said)
        ]
        if not unknown:
            return None
        owners = dict.fromkeys(str(leaf.owner) for leaf in unknown)
        return UNKNOWN_LAYOUT.format(
            addresses=", ".join(repr(leaf.address) for leaf in unknown),
            owners=", ".join(owners),
            owner=next(iter(owners)),
        )


def _unambiguous(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map names to addresses; one that two addresses could have says nothing."""
    found: dict[str, list[str]] = {}
    for name, address in named:
        found.setdefault(name, []).append(address)
    return {name: addresses[0] for name, addresses in found.items() if len(addresses) == 1}
