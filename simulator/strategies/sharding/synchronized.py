"""Batch-norm with the statistics of the whole batch, though its layer is divided by images, height or width.

Forward, the workers of the same channels sum their means, and then their mean squared distances from the common mean; each normalizes its
part with these. Backward, they sum the gradients of weight and bias, on which the gradient of the input depends:

    dX = w r (dY - sum(dY) / N - x' sum(dY x') / N),    x' = (x - mean) r,    r = 1 / sqrt(variance + eps)

Its first term is the gradient for given statistics; the others are a normalization of x with another weight and bias.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.collectives.tasks import Group
from simulator.machine.machine import Machine
from simulator.model.graph import Op, arguments_of
from simulator.plan.task import Operand
from simulator.plan.tensors import PlanTensors
from simulator.plan.views import view_step, with_views
from simulator.strategies.sharding.fetching import Fetcher

NORMALIZE, DIFFERENTIATE = "aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"


@dataclass(frozen=True)
class Member:
    """A worker of a batch-norm: its device, the operands that it reads (by input of the local op), and those that it writes."""

    device: str
    inputs: Sequence[Operand]
    writes: Sequence[Operand]


class Synchronized:
    """Makes the tasks of synchronized batch-norms, and keeps the statistics for backward."""

    def __init__(self, machine: Machine, tensors: PlanTensors, fetcher: Fetcher, stream: int, priority: int):
        """`stream`, `priority`: of the sums over devices."""
        self.machine, self.tensors, self.fetcher = machine, tensors, fetcher
        self.stream, self.priority = stream, priority
        #: By name of the value with the saved mean, and device: mean and variance over all parts.
        self._statistics: dict[tuple[str, str], tuple[Operand, Operand]] = {}

    def forward(self, op: Op, members: Sequence[Member]) -> None:
        """Normalize the parts of the members, which have the same channels. Each writes only its part of the output."""
        source, *affine, running_mean, running_var, _, momentum, epsilon = arguments_of(op)
        parts = [member.inputs[source["$"]] for member in members]
        dims = [d for d in range(len(parts[0].shape)) if d != 1]
        count = len(members) * parts[0].elements // parts[0].shape[1]
        means, variances = [], []
        for member, part in zip(members, parts, strict=True):
            mean = self._scalars(f"{op.name}:mean", member, part)
            self._call("mean.dim", [0, dims], (part,), mean)
            means.append(mean)
        self._average(f"{op.name}/mean", members, means)
        for member, part, mean in zip(members, parts, means, strict=True):
            centered = self._like(f"{op.name}:centered", member, part)
            self._call("sub.Tensor", [0, 1], (part, _by_channel(mean, len(part.shape))), centered)
            self.fetcher.call("aten.mul_.Tensor", '[{"$":0},{"$":0}]', (), (), (centered,))
            variance = self._scalars(f"{op.name}:variance", member, part)
            self._call("mean.dim", [0, dims], (centered,), variance)
            variances.append(variance)
        self._average(f"{op.name}/variance", members, variances)
        saved = op.writes[1].value
        for member, part, mean, variance in zip(members, parts, means, variances, strict=True):
            weights = [member.inputs[each["$"]] if each is not None else None for each in affine]
            self._normalize(part, weights, mean, variance, epsilon, member.writes[0])
            self._statistics[saved, member.device] = mean, variance
            for buffer, new, scale in ((running_mean, mean, 1.0), (running_var, variance, count / max(1, count - 1))):
                if buffer is not None:
                    held = member.inputs[buffer["$"]]
                    self.fetcher.call("aten.mul_.Scalar", json.dumps([{"$": 0}, 1.0 - momentum]), (), (), (held,))
                    self._call("add_.Tensor", [1, 0], (new,), held, changed=True, kwargs={"alpha": momentum * scale})

    def backward(self, op: Op, members: Sequence[Member]) -> None:
        """The gradients of the parts and, complete on every member, those of weight and bias."""
        arguments = arguments_of(op)
        gradient, source, weight, *_, saved, _, _, epsilon, mask = arguments
        if saved is None:
            raise ValueError(f"{op.name} reads no saved mean")
        name = op.inputs[saved["$"]].value
        sums, firsts = [], []
        for member in members:
            mean, variance = self._statistics[name, member.device]
            slope, part = member.inputs[gradient["$"]], member.inputs[source["$"]]
            scale = (member.inputs[weight["$"]],) if weight is not None else ()
            writes = dict(zip(op.body.outputs, member.writes, strict=True))
            by_weight, by_bias = (
                writes.get(output) or self._scalars(f"{op.name}:{kind}", member, part) for output, kind in ((1, "dW"), (2, "dB"))
            )
            own = [writes[0]] if mask[0] else []
            results = (*own, by_weight, by_bias)
            operands = (slope, part, *scale, mean, variance)
            statistics = [{"$": 2 + len(scale)}, {"$": 3 + len(scale)}]
            text = [{"$": 0}, {"$": 1}, {"$": 2} if scale else None, *statistics, None, None, False, epsilon, [mask[0], True, True]]
            outputs = (0, 1, 2) if mask[0] else (1, 2)
            self.fetcher.call(DIFFERENTIATE, json.dumps(text, separators=(",", ":")), operands, results, outputs=outputs)
            sums.append((by_weight, by_bias))
            firsts += own
        self._sum(f"{op.name}/sums", members, sums)
        if not mask[0]:
            return
        for member, (by_weight, by_bias), first in zip(members, sums, firsts, strict=True):
            mean, variance = self._statistics[name, member.device]
            part = member.inputs[source["$"]]
            count = len(members) * part.elements // part.shape[1]
            factor = self._scalars(f"{op.name}:factor", member, part)
            self.fetcher.call("aten.add.Scalar", json.dumps([{"$": 0}, epsilon]), (variance,), (factor,))
            self.fetcher.call("aten.rsqrt_.default", '[{"$":0}]', (), (), (factor,))
            self.fetcher.call("aten.mul_.Scalar", json.dumps([{"$": 0}, -1.0 / count]), (), (), (factor,))
            if weight is not None:
                self._call("mul_.Tensor", [1, 0], (member.inputs[weight["$"]],), factor, changed=True)
            weights = []
            for total, kind in ((by_weight, "weight"), (by_bias, "bias")):
                weights.append(self._scalars(f"{op.name}:{kind}", member, part))
                self._call("mul.Tensor", [0, 1], (total, factor), weights[-1])
            rest = self._like(f"{op.name}:rest", member, part)
            self._normalize(part, weights, mean, variance, epsilon, rest)
            self._call("add_.Tensor", [1, 0], (rest,), first, changed=True)

    def _normalize(
        self, part: Operand, weights: Sequence[Operand | None], mean: Operand, variance: Operand, epsilon: float, result: Operand
    ) -> None:
        operands = (part, *(each for each in weights if each is not None), mean, variance)
        places = iter(range(1, len(operands)))
        slots = [{"$": next(places)} if each is not None else None for each in (*weights, mean, variance)]
        text = json.dumps([{"$": 0}, *slots, False, 0.0, epsilon], separators=(",", ":"))
        self.fetcher.call(NORMALIZE, text, operands, (result,))

    def _average(self, name: str, members: Sequence[Member], values: Sequence[Operand]) -> None:
        for value in values:
            self.fetcher.call("aten.mul_.Scalar", json.dumps([{"$": 0}, 1.0 / len(members)]), (), (), (value,))
        self._sum(name, members, [(value,) for value in values])

    def _sum(self, name: str, members: Sequence[Member], values: Sequence[tuple[Operand, ...]]) -> None:
        group = Group(self.machine, tuple(member.device for member in members), stream=self.stream, priority=self.priority)
        self.fetcher.tasks += group.all_reduce(self.fetcher.task_name(name), values)

    def _call(self, target: str, places: list, reads: tuple, result: Operand, changed: bool = False, kwargs: dict | None = None) -> None:
        """An op on operands (numbers in `places`; lists are taken as they are) that writes or changes `result`."""
        text = json.dumps([each if isinstance(each, list) else {"$": each} for each in places], separators=(",", ":"))
        writes, mutates = ((), (result,)) if changed else ((result,), ())
        self.fetcher.call(f"aten.{target}", text, reads, writes, mutates, kwargs=kwargs)

    def _scalars(self, name: str, member: Member, part: Operand) -> Operand:
        """A scratch value with a number for each channel."""
        return self.tensors.scratch(self.fetcher.value_name(f"{name}@{member.device}"), part.shape[1:2], part.dtype, member.device)

    def _like(self, name: str, member: Member, part: Operand) -> Operand:
        name = self.fetcher.value_name(f"{name}@{member.device}")
        return self.fetcher.new(name, part.shape, part, member.device)


def _by_channel(operand: Operand, rank: int) -> Operand:
    """A number for each channel as a tensor of `rank` dimensions."""
    shape = [1, operand.shape[0], *[1] * (rank - 2)]
    return with_views(operand, [view_step("aten.view.default", shape)])
