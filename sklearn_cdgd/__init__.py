"""Find the wrong rows of a noisy data set with the help of a small clean one."""

from . import datasets
from ._baselines import CleanSetDetector, NoisySetDetector
from ._detector import CorruptionDetector
from ._plot import CleanupDisplay, InclusionDisplay, OuterLossDisplay, ReviewSheetDisplay, ThresholdCurveDisplay
from ._unroll import DivergenceError

__version__ = "0.1.0.dev0"

__all__ = [
    "CleanSetDetector",
    "CleanupDisplay",
    "CorruptionDetector",
    "DivergenceError",
    "InclusionDisplay",
    "NoisySetDetector",
    "OuterLossDisplay",
    "ReviewSheetDisplay",
    "ThresholdCurveDisplay",
    "datasets",
]
