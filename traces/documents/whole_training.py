"""What a whole training takes at the rate of a step: hours, hours of all devices, and money."""

from typing import Self

from pydantic import Field

from traces.documents.base import Data
from traces.documents.step import Step

#: Tokens of a training whose number nobody stated.
BILLION = 1e9


class WholeTraining(Data):
    """A training on so many `tokens`. `interval_hours`: the 90 % interval of `hours`. `device_hours`: those of all devices together.

    `cost`: of the devices' hours if one has a `price`, in dollars.
    """

    tokens: float = Field(gt=0)
    hours: float
    interval_hours: tuple[float, float] | None = None
    device_hours: float
    price: float | None = Field(default=None, ge=0)
    cost: float | None = None

    @classmethod
    def at(cls, step: Step, own_tokens: int, devices: int, budget: tuple[float, float | None]) -> Self:
        """A training whose step has `own_tokens` and runs on so many devices. `budget`: its tokens and the price of a device for an hour.

        >>> WholeTraining.at(Step(step_s=0.5, interval_s=None), own_tokens=1_000_000, devices=8, budget=(3.6e9, 2.0)).cost
        8.0
        """
        tokens, price = budget
        hours = tokens / own_tokens / 3600
        bounds = step.interval_s and (step.interval_s[0] * hours, step.interval_s[1] * hours)
        spent = step.step_s * hours * devices
        return cls(
            tokens=tokens, hours=step.step_s * hours, interval_hours=bounds, device_hours=spent, price=price,
            cost=None if price is None else price * spent,
        )  # fmt: skip
