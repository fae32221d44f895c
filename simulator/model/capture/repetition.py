"""Whether every training step of a model is the same step. A plan repeats one, so a model that changes from step to step is refused."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from simulator.model.built import Built, check_hooks
from simulator.model.graph import Op
from simulator.plan.task import Value
from traces.errors import Code, SchedcastError

#: What to do about a difference between steps.
ADVICE = "a plan repeats one step; keep what changes in buffers, and update them in place"
#: Types of attributes whose change can be named in a message.
_PLAIN = (int, float, str, type(None))


class PythonDraws:
    """The states of Python's and NumPy's own generators of random numbers. A plan cannot draw from them: it has what capture drew."""

    def __init__(self):
        """Remember the states as they are now."""
        self._python, self._numpy = random.getstate(), numpy.random.get_state(legacy=False)

    def happened(self) -> bool:
        """Whether random numbers were drawn since then."""
        return random.getstate() != self._python or repr(numpy.random.get_state(legacy=False)) != repr(self._numpy)

    def repeat(self) -> None:
        """Let the same numbers be drawn again."""
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)


class StepWatch:
    """Remembers a model before a step, to see what its forward pass leaves behind."""

    def __init__(self, built: Built):
        """Start watching. Gradients that the factory has left are dropped, as `zero_grad` does in training."""
        self._module = built.module
        for parameter in self._module.parameters():
            parameter.grad = None
        self._parameters = self._places()
        self._attributes = self._plain_attributes()
        self.draws = PythonDraws()

    def check(self) -> None:
        """Raise SchedcastError if the forward pass has computed gradients, registered hooks on parameters or replaced parameters.

        A buffer may be replaced by a table that depends on nothing but literals: see `Recorder`.
        """
        for name, parameter in self._module.named_parameters():
            if parameter.grad is not None:
                raise SchedcastError(
                    f"the model's forward calls backward (parameter {name!r} has a gradient before the loss exists); expected one that"
                    " returns the loss, since backward and the update are predicted anyway: accumulation is --accumulate 4, clipping"
                    " --clip-norm 1"
                )
        check_hooks("the model", self._module)
        for name, own in self._places().items():
            if own is not self._parameters.get(name):
                raise SchedcastError(
                    f"the model's forward replaces its parameter {name!r} by another one; expected the same one in every step; change its"
                    " content in place (add_, copy_)"
                )

    def changed(self) -> str:
        """Name the plain attributes that the forward pass has changed: `'count' of layer 'gate' from 0 to 1`; empty if there are none."""
        now = self._plain_attributes()
        changes = [(place, before, now[place]) for place, before in self._attributes.items() if place in now and now[place] != before]
        return ", ".join(
            f"{name!r} of {f'layer {layer!r}' if layer else 'the model'} from {before!r} to {after!r}"
            for (layer, name), before, after in changes[:3]
        )

    def _places(self) -> dict[str, torch.Tensor]:
        """Every parameter by name. One with two names has both."""
        return dict(self._module.named_parameters(remove_duplicate=False))

    def _plain_attributes(self) -> dict[tuple[str, str], Any]:
        return {
            (layer, name): item
            for layer, module in self._module.named_modules()
            for name, item in vars(module).items()
            if isinstance(item, _PLAIN)
        }


def check_inputs(ops: Sequence[Op], values: Mapping[str, Value], inputs: Sequence[str]) -> None:
    """Raise SchedcastError for an op that changes an input or target in place: the next step would see the changed one."""
    storages = {values[name].storage: name for name in inputs}
    for op in ops:
        for operand in op.mutates:
            name = storages.get(values[operand.value].storage)
            if name is not None:
                raise SchedcastError(
                    f"{op.body.target} in layer {op.layer!r} changes {name} in place; expected inputs and targets that stay as they are;"
                    " copy it first: x = x.clone()"
                )


def check_same(first: Sequence[Op], second: Sequence[Op], watch: StepWatch) -> None:
    """Raise SchedcastError if two forward passes in a row did not issue the same ops with the same arguments."""
    for before, after in zip(first, second, strict=False):
        if before != after:
            raise SchedcastError(f"two forward passes in a row differ at {_difference(before, after)}{_why(watch)}; {ADVICE}", Code.MODEL)
    if len(first) != len(second):
        raise SchedcastError(f"two forward passes in a row have {len(first)} and {len(second)} ops{_why(watch)}; {ADVICE}", Code.MODEL)


def _difference(before: Op, after: Op) -> str:
    if before.body.target != after.body.target or before.layer != after.layer:
        return f"{before.name}, which is {after.name} the second time"
    return f"{before.name}, which has other arguments the second time"


def _why(watch: StepWatch) -> str:
    changed = watch.changed()
    return f" (meanwhile the forward changes {changed})" if changed else ""
