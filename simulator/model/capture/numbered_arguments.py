"""The tensor arguments of an op as positions among its operands."""

from collections.abc import Callable

import torch

from simulator.plan.task import Operand


class NumberedArguments:
    """Number the tensor arguments of an op: first those that it reads, then those that it changes."""

    def __init__(self, operand: Callable[[torch.Tensor], Operand], mutated: list[torch.Tensor]):
        """`operand` returns the operand of a tensor. `mutated`: the tensors that the op changes."""
        self._operand = operand
        self._mutated = {id(t) for t in mutated}
        self._reads: dict[Operand, int] = {}
        self._mutates: dict[Operand, int] = {}

    def __call__(self, tensor: torch.Tensor) -> str:
        """Return a placeholder for the tensor, which `renumber` replaces by its position."""
        operand = self._operand(tensor)
        table, mark = (self._mutates, "m") if id(tensor) in self._mutated else (self._reads, "r")
        return f"{mark}{table.setdefault(operand, len(table))}"

    def finish(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """Return (reads, mutates)."""
        return tuple(self._reads), tuple(self._mutates)

    def renumber(self, text: str) -> str:
        """Replace the placeholders in `text` by positions in reads + mutates."""
        for mark, table, first in (("r", self._reads, 0), ("m", self._mutates, len(self._reads))):
            for position in table.values():
                text = text.replace(f'{{"$":"{mark}{position}"}}', f'{{"$":{first + position}}}')
        return text
