"""Synthetic traces of training steps: the ops of a job's plan, as PyTorch would record them, with times that a test knows.

Every op takes 40 us of the host, of which the op that the executor calls takes 30, and Python 10 us between ops. A kernel takes as many
microseconds as `kernel_us` says for its task, and starts when it is launched and the GPU is free.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import FORWARD, Task
from tests.support.jobs import planned
from tests.support.kineto_traces import Trace
from traces.documents.comparison import PYTORCH

MAIN, AUTOGRAD, PAUSE_US = 1, 2, 500.0
GPU = {
    "id": 0, "name": "Tesla V100-SXM2-16GB", "numSms": 80, "totalGlobalMem": 17_000_000_000, "computeMajor": 7, "computeMinor": 0,
    "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 98304,
}  # fmt: skip
#: How ops were called before PyTorch 1.9, and the parts of those that have parts.
_OLD = {"convolution": "cudnn_convolution", "convolution_backward": "cudnn_convolution_backward", "native_batch_norm": "cudnn_batch_norm"}


def kernel_us(task: Task) -> float:
    """Microseconds of a task's kernel: 20 and one for each 1000 elements that it reads."""
    return 20.0 + sum(operand.elements for operand in task.inputs) // 1000


def v100_plan(job: Job, name: str = PYTORCH) -> Plan:
    """The plan of a job on a V100."""
    machine = load_machine("v100")
    return planned(name, job, machine.for_pytorch if name == PYTORCH else machine)


@dataclass
class Recorder:
    """Records steps of a job. `old`: as PyTorch 1.8 does. `shapes`, `backward`, `update`: whether these are recorded."""

    job: Job
    old: bool = False
    shapes: bool = True
    backward: bool = True
    update: bool = True
    kernel_us: Callable[[Task], float] = kernel_us
    launch: str = "cudaLaunchKernel"
    kernel: str = "kernel_of_{}"

    def __post_init__(self):
        self.plan = v100_plan(self.job)
        self.trace = Trace()
        self.trace.gpus = [GPU]
        self.host_us, self.gpu_us = 0.0, 0.0

    def steps(self, count: int) -> "Recorder":
        """Record more steps, each after a pause of the host."""
        recorded = sum(event["name"].startswith("ProfilerStep#") for event in self.trace.events)
        for number in range(recorded, recorded + count):
            begin = self.host_us
            self.host_us += PAUSE_US
            for task in self.plan.tasks:
                if isinstance(task.body, OpCall) and (task.phase == FORWARD or self.backward):
                    self.op(task)
            if self.update:
                self._updates([task for task in self.plan.tasks if not isinstance(task.body, OpCall)])
            self.trace.annotate(f"ProfilerStep#{number}", begin, self.host_us - begin)
        return self

    def extra(self, name: str, us: float, shapes: list | None = None, count: int = 1) -> None:
        """Record an op that the plan lacks, with `count` kernels."""
        self._called(name, shapes, MAIN, [us] * count, 30.0)
        self.host_us += 40

    def op(self, task: Task) -> None:
        """Record the op of a task."""
        target = task.body.target.split(".")[1]
        shapes = [list(operand.shape) for operand in task.inputs]
        thread = MAIN if task.phase == FORWARD else AUTOGRAD
        if task.phase != FORWARD:
            self._event(f"{target.title()}Backward0", self.host_us, 40.0, shapes[:1], thread)
        start, total_us = self.host_us + 5, self.kernel_us(task)
        if target == "convolution_backward" and sum(_mask(task)) > 1:
            self._in_two(task, start, shapes, thread, total_us)
        else:
            self.host_us = start
            self._called(f"aten::{_OLD.get(target, target) if self.old else target}", shapes, thread, [total_us], 30.0)
            self.host_us = start + 35
        self.host_us = start + 45

    def _in_two(self, task: Task, start: float, shapes: list, thread: int, total_us: float) -> None:
        """The backward of a convolution: a quarter of its time for dX, the rest for dW."""
        name = "aten::cudnn_convolution_backward" if self.old else "aten::convolution_backward"
        self._event(name, start, 30.0, shapes, thread)
        for part, share, offset in (("input", 0.25, 2.0), ("weight", 0.75, 17.0)):
            if self.old:
                self._event(f"{name}_{part}", start + offset, 10.0, shapes, thread)
            elif part == "weight":
                self._event("aten::empty", start + offset, 1.0, [], thread)
            self._launch(start + offset + 2, thread, share * total_us)

    def _updates(self, tasks: list[Task]) -> None:
        begin = self.host_us
        self.host_us += 5
        for task in tasks:
            single = task.body.form == "for"
            name, shapes = ("aten::add_", [list(task.reads[0].shape)] * 2) if single else (f"aten::_{task.body.form}_add_", [[], []])
            self._called(name, shapes, MAIN, [self.kernel_us(task)], 30.0)
            self.host_us += 40
        self.trace.annotate("Optimizer.step#SGD.step", begin, self.host_us - begin)

    def _called(self, name: str, shapes: list | None, thread: int, kernels: list[float], length: float) -> None:
        start = self.host_us
        self._event(name, start, length, shapes, thread)
        for number, us in enumerate(kernels):
            self._launch(start + 5 + 2 * number, thread, us)

    def _launch(self, at_us: float, thread: int, us: float) -> None:
        correlation = self.trace.call(self.launch, at_us, 1.0, thread=thread, cat="Runtime" if self.old else "cuda_runtime")
        start = max(at_us + 4, self.gpu_us)
        self.trace.work(self.kernel.format(correlation), start, us, correlation, cat="Kernel" if self.old else "kernel", block=[128, 1, 1])
        self.gpu_us = start + us

    def _event(self, name: str, start: float, length: float, shapes: list | None, thread: int) -> None:
        cat = "Operator" if self.old else "cpu_op"
        self.trace.op(name, start, length, shapes if self.shapes else None, thread=thread, cat=cat)


def _mask(task: Task) -> list[bool]:
    return json.loads(task.body.args)[-1]
