"""`schedcast mcp`: the questions of the command line as tools of the Model Context Protocol, for agents, on standard input and output.

Tools read only the traces that they are given, and run only models by name and those that the server was started with.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import SchedcastError
from ui.api import facade
from ui.request import JobRequest, check_steered, optimizer_and_form

if TYPE_CHECKING:
    from ui.api.predicted import Predicted

INSTRUCTIONS = """Schedcast forecasts how long a training step of a neural network takes, whether it fits, and what would make it faster.
Every figure has a 90 % interval: two figures whose intervals overlap may be equal, and "cannot tell" means that. Times are of one training
step of the whole batch. Ask `replay` about a trace of torch.profiler, `predict` about a model and a machine, `search` for the best
schedule, `diff` about two traces. A refusal says in one line what to change. The resource skill://schedcast says how to read answers."""


def serve(models: list[str]) -> None:
    """Serve until standard input ends. `models`: the users' own factories, FILE.py:FACTORY, that may run.

    Raises ModuleNotFoundError without the package mcp.
    """
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    def refusing(tool: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(tool)
        def called(*arguments: Any, **named: Any) -> str:
            try:
                return tool(*arguments, **named)
            except SchedcastError as error:  # the agent reads its line
                raise ToolError(str(error)) from error

        return called

    server = MCPServer("schedcast", instructions=INSTRUCTIONS)
    for tool in tools(models):
        server.tool(structured_output=False)(refusing(tool))
    about = "Which question, which call, and how to read the answer"
    server.resource("skill://schedcast", name="schedcast", description=about, mime_type="text/markdown")(skill)
    try:
        server.run("stdio")
    except BaseExceptionGroup as group:  # of its tasks: the client left, or standard output is closed
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


def skill() -> str:
    """The page for agents."""
    return Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8")


def tools(models: list[str]) -> list[Callable[..., str]]:
    """The tools. An agent sees their names, arguments and docstrings; they answer in words."""

    def asked(request: JobRequest) -> "Predicted":
        from ui.api.predicted import answer

        check_steered(request, models)
        return answer(request)

    def predict(
        model: str,
        machine: str,
        batch: int | None = None,
        strategies: list[str] | None = None,
        optimizer: str | None = None,
        precision: str | None = None,
        image_size: int | None = None,
        devices: int | None = None,
        memory_limit_gb: float | None = None,
        scale: dict[str, float] | None = None,
    ) -> str:
        """How long a training step takes on a machine, and whether it fits.

        model: a built-in name (see `names`), torchvision:NAME, timm:NAME or hf:NAME. machine: a name such as h100, a100, v100 (see
        `names`). strategies: NAME or NAME:option=value, such as turbodl, backward-fusion, gpipe; plain PyTorch is always there.
        image_size: the side of an image, or the length of a sequence. scale: factors of the machine's figures, such as {"memory": 2}.
        """
        request = JobRequest(
            model, batch, image_size, precision=precision, machine=machine,
            devices=devices, memory_limit=memory_limit_gb, strategies=tuple(strategies or ()),
        )  # fmt: skip
        answer = asked(request if optimizer is None else replace(request, **optimizer_and_form(optimizer)))
        return repr(answer.what_if(**scale) if scale else answer)

    def search(model: str, machine: str, batch: int | None = None, memory_limit_gb: float | None = None, devices: int | None = None) -> str:
        """Which schedule trains a model fastest on a machine, and how sure that is. Takes up to a minute. Arguments as in `predict`."""
        return repr(facade.search(asked(JobRequest(model, batch, machine=machine, devices=devices, memory_limit=memory_limit_gb))))

    def replay(trace: str, what_if: list[str] | None = None) -> str:
        """Why a GPU is idle in a recorded training step, and what would make it faster.

        trace: a file that torch.profiler wrote. what_if: rules, such as "optimizer=fused", "loader workers=4", "host 2x faster",
        "kernel:/REGEX/ 2x faster", "cuda-graph"; without any, all that apply are ranked.
        """
        return repr(facade.replay(trace, what_if or []))

    def diff(before: str, after: str) -> str:
        """Why one recorded run is slower than another, in terms that add up. Two files that torch.profiler wrote."""
        return repr(facade.diff(before, after))

    def names() -> str:
        """The built-in models, the strategies and the machines that can be named."""
        from simulator.machine.presets import machine_names
        from simulator.model.workloads import registry as workloads
        from simulator.strategies import registry

        lists = {"models": [*models, *workloads.names()], "strategies": registry.names(), "machines": machine_names()}
        return "\n".join(f"{kind}: {', '.join(own)}" for kind, own in lists.items())

    return [predict, search, replay, diff, names]
