"""Surgery: change a network together with the state that it was trained to."""

from ptml.surgery.growing import grow
from ptml.surgery.low_rank import low_rank, merge_low_rank
from ptml.surgery.merging import merge_norms
from ptml.surgery.stacking import stack, unstack

__all__ = ["grow", "low_rank", "merge_low_rank", "merge_norms", "stack", "unstack"]
