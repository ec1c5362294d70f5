"""Rules: transforms that decide a step."""

from ptml.optim.rules.adadelta import Adadelta, adadelta, adadelta_updates
from ptml.optim.rules.adafactor import Adafactor, adafactor, adafactor_updates
from ptml.optim.rules.adagrad import Adagrad, adagrad, adagrad_updates
from ptml.optim.rules.adam import Adam, AdamW, adam, adam_updates, adamw, adamw_updates
from ptml.optim.rules.adamax import Adamax, adamax, adamax_updates
from ptml.optim.rules.lamb import Lamb, lamb, lamb_updates
from ptml.optim.rules.lbfgs import Lbfgs, lbfgs, lbfgs_updates
from ptml.optim.rules.lion import Lion, lion, lion_updates
from ptml.optim.rules.muon import Muon, muon, muon_updates
from ptml.optim.rules.nadam import Nadam, nadam, nadam_updates
from ptml.optim.rules.radam import Radam, radam, radam_updates
from ptml.optim.rules.rmsprop import Rmsprop, rmsprop, rmsprop_updates
from ptml.optim.rules.rprop import Rprop, rprop, rprop_updates
from ptml.optim.rules.sgd import Sgd, sgd, sgd_updates

__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lbfgs",
    "Lion",
    "Muon",
    "Nadam",
    "Radam",
    "Rmsprop",
    "Rprop",
    "Sgd",
    "adadelta",
    "adadelta_updates",
    "adafactor",
    "adafactor_updates",
    "adagrad",
    "adagrad_updates",
    "adam",
    "adam_updates",
    "adamax",
    "adamax_updates",
    "adamw",
    "adamw_updates",
    "lamb",
    "lamb_updates",
    "lbfgs",
    "lbfgs_updates",
    "lion",
    "lion_updates",
    "muon",
    "muon_updates",
    "nadam",
    "nadam_updates",
    "radam",
    "radam_updates",
    "rmsprop",
    "rmsprop_updates",
    "rprop",
    "rprop_updates",
    "sgd",
    "sgd_updates",
]
