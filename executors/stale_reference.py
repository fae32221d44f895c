"""Training with stale weights, written plainly and slowly. The numbers of pipelines that never drain are compared with it."""

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from executors.reference import Reference
from simulator.strategies.pipeline.staleness import Staleness


class StaleReference(Reference):
    """A `Reference` whose mini-batch m is computed with weights that lack updates, by parameter: one mini-batch after another.

    Forward runs with the weights after update m - `forward`, then backward with those after update m - `backward` (the first weights, if
    there were not so many updates). The update changes the newest weights.
    """

    staleness: Mapping[str, Staleness]

    def stale(self, staleness: Mapping[str, Staleness]) -> "StaleReference":
        """Train with this staleness from now on, beginning with the present weights."""
        self.staleness = staleness
        most = max((max(each) for each in staleness.values()), default=0)
        #: The weights after each of the last updates, the newest last.
        self._versions: deque[dict[str, Tensor]] = deque([self._weights()], maxlen=most + 1)
        return self

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}

    def _load(self, phase: int) -> None:
        """Give every parameter its version for forward (0) or backward (1), unseen by autograd, which would refuse the changed weights."""
        for name, parameter in self.module.named_parameters():
            lacking = self.staleness.get(name, Staleness())[phase]
            parameter.data.copy_(self._versions[max(-1 - lacking, -len(self._versions))][name])

    def step(self) -> Tensor:
        """Train one step. Returns its loss as a detached tensor."""
        self.optimizer.zero_grad(set_to_none=True)
        context, count, losses = self._forward_context(), len(self.micro_batches), []
        for inputs, target in self.micro_batches:
            self._load(0)
            with context():
                output = self.module(**inputs) if isinstance(inputs, dict) else self.module(*inputs)
                loss = self.loss(output, target)
            self._load(1)
            self._scaled(loss if count == 1 else loss / count).backward()
            losses.append(loss.detach())
        for name, parameter in self.module.named_parameters():
            parameter.data.copy_(self._versions[-1][name])
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.clip_norm)
        self._update()
        self._versions.append(self._weights())
        return torch.stack(losses).mean()
