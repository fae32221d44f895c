"""The predicted step that every answer holds: seconds, and how sure they are."""

from traces.documents.base import Data, Duration


class Step(Data):
    """A predicted training step. `step_s`: its seconds. `interval_s`: their 90 % interval; None in documents from before it was kept.

    >>> Step(step_s=0.0258, interval_s=(0.0241, 0.0279)).interval_s
    (0.0241, 0.0279)
    """

    step_s: Duration
    interval_s: tuple[float, float] | None
