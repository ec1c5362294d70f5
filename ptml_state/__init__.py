"""State trees for PyTensor graphs: slots declare, states hold values, archives keep them."""

from ptml_state.archive import (
    Archive,
    ArchiveError,
    LoadReport,
    inspect,
    load_report,
    load_state,
    save_state,
)
from ptml_state.arithmetic import add, average, cosines, difference, interpolate, map_states, norms
from ptml_state.checkpoints import Checkpoint, Checkpointer, CheckpointError
from ptml_state.display import Diff
from ptml_state.leaf import Leaf
from ptml_state.pruning import prune
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
    "Archive",
    "ArchiveError",
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "Diff",
    "Leaf",
    "LoadReport",
    "Role",
    "Slot",
    "SlotVariable",
    "State",
    "Store",
    "Where",
    "add",
    "average",
    "combine",
    "cosines",
    "difference",
    "inspect",
    "interpolate",
    "load_report",
    "load_state",
    "map_states",
    "norms",
    "prune",
    "register_jax",
    "save_state",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_map",
    "tree_unflatten",
    "where",
]
