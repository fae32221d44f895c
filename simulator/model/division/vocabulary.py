"""A vocabulary divided among devices: the embedding of tokens, and the loss over logits, each device having those of its own tokens.

Megatron-LM, section 3: the input embedding gives zeros for tokens of other devices and sums over the devices; the cross-entropy exchanges
one number per token instead of all logits.
"""

from collections.abc import Sequence

from simulator.model.division.axes import scales_by_frequency
from simulator.model.division.local import LocalTensors
from simulator.model.division.placement import PARTIAL, WHOLE, Placement, cut_along
from simulator.model.graph import Op, arguments_of
from simulator.plan.task import Operand
from simulator.plan.views import view_step, with_views

_MEAN, _SUM = 1, 2  # aten's numbers of reductions
_NONE = -100  # the number of no class


class Vocabulary:
    """Runs the ops whose tensors are divided by tokens of the vocabulary."""

    def __init__(self, local: LocalTensors):
        self._local = local
        #: By value of token numbers: those within the device's part, from 0 on, and whether they are.
        self._own: dict[tuple[Operand, int], tuple[Operand, Operand]] = {}
        #: By the same, what is looked up: token numbers within the device's part, and 0 for the tokens of other devices.
        self._rows: dict[tuple[Operand, int], Operand] = {}
        self._looked_up: set[tuple[str, int]] = set()

    def runs(self, op: Op) -> bool:
        """Add the ops of a device in the place of `op`, if it works along a vocabulary that is divided. Returns whether it did."""
        name, arguments = op.body.target.split(".")[1], arguments_of(op)
        if name == "embedding" and self._class_dim(op.inputs[0]) == 0 and not scales_by_frequency(op):
            self._embedding(op)
        elif name == "embedding_dense_backward" and (op.inputs[1].value, arguments[2]) in self._looked_up:
            self._embedding_backward(op)
        elif name == "_log_softmax" and self._class_dim(op.inputs[0]) == arguments[1] % len(op.inputs[0].shape):
            self._log_softmax(op)
        elif name == "_log_softmax_backward_data" and self._class_dim(op.inputs[1]) == arguments[2] % len(op.inputs[1].shape):
            self._log_softmax_backward(op)
        elif name == "cross_entropy" and self._class_dim(op.inputs[0]) == 1:
            self._cross_entropy(op)
        elif name == "cross_entropy_backward" and self._class_dim(_in_order(op)[2]) == 1:
            self._cross_entropy_backward(op)
        elif name in ("nll_loss_forward", "nll_loss_backward") and self._class_dim(op.inputs[int(name.endswith("backward"))]) == 1:
            (self._loss_backward if name.endswith("backward") else self._loss)(op)
        else:
            return False
        return True

    def _placement(self, operand: Operand) -> Placement:
        return next((placement for placement, *_ in self._local.seen(operand)), WHOLE)

    def _class_dim(self, operand: Operand) -> int | None:
        """The dimension along which each device has one range of an operand; None if there is none."""
        placement = self._placement(operand)
        return placement.dim if len(placement.blocks) == 1 else None

    def _part(self, op: Op, operand: Operand) -> Operand:
        """The device's part of an operand that is divided."""
        return self._local.placed(op, operand, self._placement(operand))

    def _own_tokens(self, op: Op, tokens: Operand, vocabulary: int) -> tuple[Operand, Operand]:
        """The numbers of tokens within the device's part of the vocabulary, from 0 on, and which of them are; others have any number."""
        whole = self._local.placed(op, tokens, WHOLE)
        key = (whole, vocabulary)
        if key not in self._own:
            local, part = self._local, vocabulary // self._local.degree
            moved = local.call(f"{tokens.value}#own", "sub.Tensor", [{"$": 0}, self._local.rank * part], (whole,), whole.shape)
            above = local.call(f"{tokens.value}#above", "ge.Scalar", [{"$": 0}, 0], (moved,), whole.shape, "bool")
            below = local.call(f"{tokens.value}#below", "lt.Scalar", [{"$": 0}, part], (moved,), whole.shape, "bool")
            mine = local.call(f"{tokens.value}#mine", "logical_and.default", [{"$": 0}, {"$": 1}], (above, below), whole.shape, "bool")
            self._own[key] = moved, mine
        return self._own[key]

    def _own_rows(self, op: Op, tokens: Operand, vocabulary: int) -> tuple[Operand, Operand]:
        """The rows of the device's part of the table that are looked up, and which tokens have one; others have row 0."""
        moved, mine = self._own_tokens(op, tokens, vocabulary)
        key = (self._local.placed(op, tokens, WHOLE), vocabulary)
        if key not in self._rows:
            product = [{"$": 0}, {"$": 1}]
            self._rows[key] = self._local.call(f"{tokens.value}#within", "mul.Tensor", product, (moved, mine), moved.shape)
        return self._rows[key], mine

    def _embedding(self, op: Op) -> None:
        weight, tokens = op.inputs
        rows = weight.shape[0]
        within, mine = self._own_rows(op, tokens, rows)
        self._looked_up.add((tokens.value, rows))
        made = self._local.written(op.writes[0], PARTIAL)
        self._local.replace(op, (self._part(op, weight), within), (made,))
        last = len(mine.shape)
        self._local.change(f"{made.value}/masked", "mul_.Tensor", [{"$": 1}, {"$": 0}], (with_dim(mine, last),), (made,))

    def _embedding_backward(self, op: Op) -> None:
        gradient, tokens = op.inputs
        arguments = arguments_of(op)
        rows, part = arguments[2], arguments[2] // self._local.degree
        whole = self._local.placed(op, gradient, WHOLE)
        within, mine = self._own_rows(op, tokens, rows)
        masked = self._local.call(
            f"{gradient.value}#mine", "mul.Tensor", [{"$": 0}, {"$": 1}], (whole, with_dim(mine, len(mine.shape))), whole.shape
        )
        padding = arguments[3] - self._local.rank * part
        arguments[2:4] = [part, padding if arguments[3] >= 0 and 0 <= padding < part else -1]
        made = self._local.written(op.writes[0], Placement(0, (rows,)))
        self._local.replace(op, (masked, within), (made,), arguments)

    def _log_softmax(self, op: Op) -> None:
        """Each device normalizes its own logits; then all exchange the logarithms of their sums, one per token."""
        local, placement = self._local, self._placement(op.inputs[0])
        source = self._part(op, op.inputs[0])
        made = local.written(op.writes[0], placement)
        local.replace(op, (source,), (made,), parts=local.degree)
        rows = made.shape[: placement.axis] + made.shape[placement.axis + 1 :]
        sums = local.call(f"{made.value}#sums", "logsumexp.default", [{"$": 0}, [placement.axis]], (source,), rows)
        every = with_views(local.all_gather(sums), [view_step("aten.view.default", [local.degree, *rows])])
        total = local.call(f"{made.value}#total", "logsumexp.default", [{"$": 0}, [0]], (every,), rows)
        rest = local.call(f"{made.value}#rest", "sub.Tensor", [{"$": 0}, {"$": 1}], (sums, total), rows)
        local.change(f"{made.value}/add_rest", "add_.Tensor", [{"$": 1}, {"$": 0}], (with_dim(rest, placement.axis),), (made,))

    def _log_softmax_backward(self, op: Op) -> None:
        """gradient - exp(output) * the sum of the gradient over all devices' tokens."""
        local, placement = self._local, self._placement(op.inputs[1])
        gradient, output = local.placed(op, op.inputs[0], placement), self._part(op, op.inputs[1])
        dim = placement.axis
        shape = (*output.shape[:dim], 1, *output.shape[dim + 1 :])
        name = op.writes[0].value
        total = local.call(f"{name}#total", "sum.dim_IntList", [{"$": 0}, [dim], True], (gradient,), shape)
        local.all_reduce(total)
        spread = local.call(f"{name}#spread", "exp.default", [{"$": 0}], (output,), output.shape)
        local.change(f"{name}/spread", "mul_.Tensor", [{"$": 1}, {"$": 0}], (total,), (spread,))
        made = local.written(op.writes[0], placement)
        local.call_into(op.name, "sub.Tensor", (gradient, spread), made)

    def _targets(self, op: Op, tokens: Operand, vocabulary: int, ignored: int) -> tuple[Operand, int]:
        """The targets within the device's part, from 0 on, and the number that says to ignore one: those of other devices have it."""
        local, part = self._local, vocabulary // self._local.degree
        moved, mine = self._own_tokens(op, tokens, vocabulary)
        own = ignored - local.rank * part
        own = own if 0 <= own < part else _NONE
        arguments = [{"$": 0}, {"$": 1}, own]
        return local.call(f"{tokens.value}#targets", "where.ScalarOther", arguments, (mine, moved), moved.shape, moved.dtype), own

    def _loss(self, op: Op) -> None:
        local, arguments, classes = self._local, arguments_of(op), op.inputs[0].shape[1]
        targets, arguments[4] = self._targets(op, op.inputs[1], classes, arguments[4])
        weights = [local.placed(op, operand, cut_along(0, classes)) for operand in op.inputs[2:]]
        summed_loss(local, op, (self._part(op, op.inputs[0]), targets, *weights), arguments)

    def _loss_backward(self, op: Op) -> None:
        local, arguments, classes = self._local, arguments_of(op), op.inputs[1].shape[1]
        first, _, tokens, *class_weights, last = op.inputs
        targets, arguments[5] = self._targets(op, tokens, classes, arguments[5])
        gradient, weight = (local.placed(op, operand, WHOLE) for operand in (first, last))
        weights = [local.placed(op, operand, cut_along(0, classes)) for operand in class_weights]
        made = local.written(op.writes[0], self._placement(op.inputs[1]))
        local.replace(op, (gradient, self._part(op, op.inputs[1]), targets, *weights, weight), (made,), arguments, parts=local.degree)

    def _cross_entropy(self, op: Op) -> None:
        """Each device sums its own logits and picks the label's, if it has that; then all exchange two numbers per row."""
        local, (logits, labels) = self._local, _in_order(op)
        targets, _ = self._targets(op, labels, logits.shape[1], _NONE)
        picked, total = (local.written(operand, WHOLE) for operand in op.writes)
        own = local.scratch(f"{total.value}#own", total.shape, total.dtype)
        local.replace(op, (self._part(op, logits), targets), (picked, own), parts=local.degree)
        local.all_reduce(picked)
        every = with_views(local.all_gather(own), [view_step("aten.view.default", [local.degree, *total.shape])])
        local.call_into(f"{op.name}#total", "logsumexp.default", (every,), total, '[{"$":0},[0]]')

    def _cross_entropy_backward(self, op: Op) -> None:
        local, (of_picked, of_sums, logits, labels, sums) = self._local, _in_order(op)
        targets, _ = self._targets(op, labels, logits.shape[1], _NONE)
        of_picked, of_sums, sums = (local.placed(op, operand, WHOLE) for operand in (of_picked, of_sums, sums))
        made = local.written(op.writes[0], self._placement(logits))
        reads = of_picked, of_sums, self._part(op, logits), targets, sums
        local.replace(op, reads, (made,), [{"$": at} for at in range(len(reads))], parts=local.degree)


def _in_order(op: Op) -> list[Operand]:
    """The operands of an op of tensors alone, in the order of its arguments."""
    return [op.inputs[argument["$"]] for argument in arguments_of(op)]


def summed_loss(local: LocalTensors, op: Op, reads: Sequence[Operand], arguments: list) -> None:
    """Add the ops of a loss whose scores are divided among the devices: they exchange its sum and the weight of the labels."""
    loss, weight = (local.written(operand, WHOLE) for operand in op.writes)
    mean = arguments[3] == _MEAN
    added = local.scratch(f"{loss.value}#sum", (), loss.dtype) if mean else loss
    arguments[3] = _SUM if mean else arguments[3]
    local.replace(op, reads, (added, weight), arguments, parts=local.degree)
    local.all_reduce(added, weight)
    if mean:
        local.call_into(f"{op.name}#mean", "div.Tensor", (added, weight), loss)


def with_dim(operand: Operand, dim: int) -> Operand:
    """The operand with a dimension of extent 1 at `dim`."""
    return with_views(operand, [view_step("aten.unsqueeze.default", dim)])
