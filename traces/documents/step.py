"""The predicted step in every answer: its seconds, and their uncertainty."""

from traces.documents.base import Data, Duration


class Step(Data):
    """A predicted training step. `step_s`: its seconds. `interval_s`: their 90 % interval; None in older documents.

    >>> Step(step_s=0.0258, interval_s=(0.0241, 0.0279)).interval_s
    (0.0241, 0.0279)
    """

    step_s: Duration
    interval_s: tuple[float, float] | None
