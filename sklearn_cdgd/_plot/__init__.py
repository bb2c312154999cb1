"""Displays: arrays that can draw themselves. matplotlib is imported by the methods that draw."""

from ._curves import InclusionDisplay, OuterLossDisplay, ThresholdCurveDisplay
from ._pictures import CleanupDisplay, ReviewSheetDisplay

__all__ = ["CleanupDisplay", "InclusionDisplay", "OuterLossDisplay", "ReviewSheetDisplay", "ThresholdCurveDisplay"]
