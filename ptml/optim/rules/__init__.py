"""Rules: transforms that decide a step."""

from ptml.optim.rules.adam import Adam, AdamW, adam_updates, adamw_updates
from ptml.optim.rules.sgd import Sgd, sgd_updates

__all__ = ["Adam", "AdamW", "Sgd", "adam_updates", "adamw_updates", "sgd_updates"]
