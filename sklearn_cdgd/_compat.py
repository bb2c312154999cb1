"""The only file that imports private names of scikit-learn or branches on a version."""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # below 1.9

    class CallbackSupportMixin:
        """Stands in where scikit-learn has no callbacks: nobody is told."""

        def _init_callback_context(self, **options):
            return _NoCallbacks()


class _NoCallbacks:
    def subcontext(self, **options):
        return self

    def call_on_fit_task_begin(self, **options):
        return self

    def call_on_fit_task_end(self, **options):
        return False


__all__ = ["CallbackSupportMixin", "HasMethods", "Interval", "StrOptions", "fit_context"]
