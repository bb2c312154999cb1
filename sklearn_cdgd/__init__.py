"""Find the wrong rows of a noisy data set with the help of a small clean one."""

from . import datasets, metrics
from ._baselines import CleanSetDetector, NoisySetDetector
from ._detector import CorruptionDetector
from ._filtered import FilteredClassifier, FilteredRegressor
from ._plot import CleanupDisplay, InclusionDisplay, OuterLossDisplay, ReviewSheetDisplay, ThresholdCurveDisplay
from ._unroll import DivergenceError
from ._version import __version__

__all__ = [
    "CleanSetDetector",
    "CleanupDisplay",
    "CorruptionDetector",
    "DivergenceError",
    "FilteredClassifier",
    "FilteredRegressor",
    "InclusionDisplay",
    "NoisySetDetector",
    "OuterLossDisplay",
    "ReviewSheetDisplay",
    "ThresholdCurveDisplay",
    "__version__",
    "datasets",
    "metrics",
]
