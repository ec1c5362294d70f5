"""What archives are made of: headers, metadata, dialects, and the matching of leaves.

:mod:`ptml_state.archive` is the way in. Handed on here is what teaches it what else values can be loaded
into.
"""

from ptml_state.archives.template import Wanted, wanted_by, wanted_places

__all__ = ["Wanted", "wanted_by", "wanted_places"]
