"""The two inner learners."""

from __future__ import annotations

from ._closed_form_learning import ClosedFormLearner
from ._learning import Learner, NetworkLearner, Settings


def learner_of(settings: Settings) -> type[Learner]:
    """Return the learner that the settings ask for."""
    return ClosedFormLearner if settings.closed_form else NetworkLearner
