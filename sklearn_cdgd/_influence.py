"""What a row that was not in the noisy set would have done to the outer objective.

The derivative of the outer objective by the weight of a row needs no row of the training, only the training itself: at
every inner step the row's gradient, times the derivative of the objective by the batch gradient,

.. math:: h(x, y) = \\frac{1}{N} \\sum_i q_i \\cdot \\nabla \\ell(x, y; \\theta_{i-1}).

For plain SGD :math:`q_i = -\\eta t_i` with the adjoint :math:`t_i` of the parameters after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ._hypergradient import Snapshot


def influence(eval_losses: Callable[..., Tensor], snapshots: Iterable[Snapshot], X, y: Tensor, n_rows: int) -> Tensor:
    """Return the derivative of the outer objective by the weights of new rows, at the weight 0.

    Parameters
    ----------
    eval_losses : callable(params, buffers, X, y) -> losses
        The loss of every row in evaluation mode, so that no row depends on another.
    snapshots : iterable of Snapshot
        Of every inner step of one training, or of some, evenly spread, of one or several; then the result is an
        estimate, up to the factor by which steps are more than snapshots.
    X, y : Tensor
        The new rows.
    n_rows : int
        Number of rows in the noisy set. With mini-batches a new row would have been in one of the batches of every
        epoch; the result is the mean over the batch that it might have been in.

    Returns
    -------
    influence : Tensor of shape (len(y),)
        Positive where adding the row would raise the clean loss.
    """
    total = torch.zeros(())
    for params, buffers, direction in snapshots:
        # Reverse mode twice: forward mode is missing for recurrent layers, and for functions of the user's own.
        _, slope = torch.autograd.functional.jvp(lambda *p, b=buffers: eval_losses(p, b, X, y), params, direction)
        total = total + slope
    return total / n_rows
