"""Networks as scikit-learn estimators: in pipelines, cross validation and grid searches."""

from ptml.sklearn.estimators import NetworkClassifier, NetworkRegressor
from ptml.sklearn.networks import Mlp

__all__ = ["Mlp", "NetworkClassifier", "NetworkRegressor"]
