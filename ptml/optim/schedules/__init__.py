"""Schedules: frozen values that map a step count to a rate."""

from ptml.optim.schedules.base import Schedule
from ptml.optim.schedules.decay import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    PolynomialSchedule,
    StepDecay,
    constant_schedule,
    cosine_schedule,
    exponential_schedule,
    linear_schedule,
    polynomial_schedule,
    step_decay,
)
from ptml.optim.schedules.join import (
    JoinedSchedules,
    LinearOnecycleSchedule,
    inverse_sqrt,
    join_schedules,
    linear_onecycle_schedule,
    warmup_cosine,
)

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "ExponentialSchedule",
    "InverseSqrtSchedule",
    "JoinedSchedules",
    "LinearOnecycleSchedule",
    "LinearSchedule",
    "PolynomialSchedule",
    "Schedule",
    "StepDecay",
    "constant_schedule",
    "cosine_schedule",
    "exponential_schedule",
    "inverse_sqrt",
    "join_schedules",
    "linear_onecycle_schedule",
    "linear_schedule",
    "polynomial_schedule",
    "step_decay",
    "warmup_cosine",
]
