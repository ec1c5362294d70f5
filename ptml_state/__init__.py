"""State trees for PyTensor graphs: slots declare, states hold values, archives keep them."""

from ptml_state.archive import ArchiveError, load_state, save_state
from ptml_state.display import Diff
from ptml_state.leaf import Leaf
from ptml_state.slot import Role, Slot, SlotVariable
from ptml_state.state import State, combine
from ptml_state.store import Store
from ptml_state.tree import (
    register_jax,
    tree_flatten,
    tree_flatten_with_path,
    tree_map,
    tree_unflatten,
)
from ptml_state.where import Where, where

__all__ = [
    "ArchiveError",
    "Diff",
    "Leaf",
    "Role",
    "Slot",
    "SlotVariable",
    "State",
    "Store",
    "Where",
    "combine",
    "load_state",
    "register_jax",
    "save_state",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_map",
    "tree_unflatten",
    "where",
]
