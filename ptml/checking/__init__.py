"""Checks of what is computed: gradients against differences, and backends against each other."""

from ptml.checking.agreement import Agreement, compare_backends
from ptml.checking.gradients import GradientError, check_gradients

__all__ = ["Agreement", "GradientError", "check_gradients", "compare_backends"]
