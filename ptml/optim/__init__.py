"""Optimizers: rules, clips, decays and schedules as frozen values, composed by `chain`."""

from ptml.optim.clipping import ClipByGlobalNorm, ClipByValue, clip_by_global_norm, clip_by_value
from ptml.optim.hyperparameters import LearningRate, Rate, to_floatx
from ptml.optim.masks import MaskedParameter
from ptml.optim.ownership import ReusesState, counter, reuses_state, scalar_state, state_for
from ptml.optim.rules.adam import Adam, AdamW, adam, adam_updates, adamw, adamw_updates
from ptml.optim.rules.sgd import Sgd, sgd, sgd_updates
from ptml.optim.scaling import (
    AddWeightDecay,
    Scale,
    ScaleBySchedule,
    Trace,
    add_weight_decay,
    scale,
    scale_by_schedule,
    trace,
)
from ptml.optim.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Schedule,
    constant_schedule,
    cosine_schedule,
    linear_schedule,
)
from ptml.optim.train import compile_train
from ptml.optim.transform import Chain, Rule, Transform, chain, take_step
from ptml.optim.updates import Gradients, Steps, Updates, get_gradients, steps_of, to_updates

__all__ = [
    "Adam",
    "AdamW",
    "AddWeightDecay",
    "Chain",
    "ClipByGlobalNorm",
    "ClipByValue",
    "ConstantSchedule",
    "CosineSchedule",
    "Gradients",
    "LearningRate",
    "LinearSchedule",
    "MaskedParameter",
    "Rate",
    "ReusesState",
    "Rule",
    "Scale",
    "ScaleBySchedule",
    "Schedule",
    "Sgd",
    "Steps",
    "Trace",
    "Transform",
    "Updates",
    "adam",
    "adam_updates",
    "adamw",
    "adamw_updates",
    "add_weight_decay",
    "chain",
    "clip_by_global_norm",
    "clip_by_value",
    "compile_train",
    "constant_schedule",
    "cosine_schedule",
    "counter",
    "get_gradients",
    "linear_schedule",
    "reuses_state",
    "scalar_state",
    "scale",
    "scale_by_schedule",
    "sgd",
    "sgd_updates",
    "state_for",
    "steps_of",
    "take_step",
    "to_floatx",
    "to_updates",
    "trace",
]
