"""The document of `schedcast judge` for pairs of steps, before and after one change: how accurate each what-if rule was on them."""

from typing import Literal

from pydantic import Field

from traces.documents.base import Data, Document

#: What a pair was predicted from.
Way = Literal["preset", "trace"]


class RuleRecord(Data):
    """How accurate a rule was. A gain is a speed-up, before over after; errors are differences of speed-ups, predicted less measured.

    `way`: each pair was predicted with the costs of a preset, or by a rule applied to the trace before the change. `sign_right`: pairs
    whose gain is on the measured side (faster, slower, the same). `median_error`: of the absolute errors. `worst_error`: with its sign.
    `rms_error`: the root mean square of the logarithms of predicted over measured gains. `alike`: both steps of each pair run one strategy.
    `intervals`: pairs with a 90 % interval, of which `covered` contain the measured gain. `fitted`: pairs with a step that the costs were
    fitted on. `misses`: why it was wrong where it was.
    """

    rule: str
    way: Way = "preset"
    pairs: int = Field(ge=1)
    sign_right: int = Field(ge=0)
    median_error: float = Field(ge=0)
    worst_error: float
    rms_error: float = Field(ge=0)
    alike: bool
    intervals: int = Field(ge=0)
    covered: int = Field(ge=0)
    fitted: int = Field(ge=0, default=0)
    sources: tuple[str, ...] = ()
    misses: str = ""


class LeftOutPairs(Data):
    """Measured pairs of a kind of change that are not predicted, and why."""

    rule: str
    pairs: int = Field(ge=1)
    reason: str


class RuleRecords(Document):
    """Document `schedcast.rules/1`. `unjudged`: the rules without a measured pair that could be predicted."""

    schema_name = "schedcast.rules/1"
    kind = "record of rules"

    records: tuple[RuleRecord, ...]
    left_out: tuple[LeftOutPairs, ...] = ()
    unjudged: tuple[str, ...] = ()
