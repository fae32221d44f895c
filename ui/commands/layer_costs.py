"""`schedcast reproduce deepa --layer`: the costs of dividing one layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.papers import deepa
from simulator.strategies.sharding.configuration import DIMENSIONS, Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs.exact import LayerCost, layer_costs
from simulator.strategies.sharding.network import Network
from traces import units
from traces.errors import SchedcastError
from ui.commands.output import print_document
from ui.present.blocks import Table
from ui.present.terminal import console as terminal
from ui.present.terminal import print_lines, show
from ui.request import JobRequest
from ui.service.cautions import caution_costs

SCHEMA = "schedcast.deepa-cost/1"


def of_paper(
    paper: str | None, request: JobRequest, *, layer: str | None, left: Sequence[str], configs: Sequence[str], **asked: Any
) -> None:
    """Print the costs of a layer of a request (without a model: of the job of the DeePa paper, and on its machine), as `deepa_cost` does.

    `left`: options of the command that are for whole papers. Raises SchedcastError for them, for other papers, and without a layer.
    """
    if paper != deepa.PAPER.name:
        raise SchedcastError(f"one layer's costs are those of the deepa paper: schedcast reproduce deepa --layer {layer or 'fc6'}")
    if layer is None or left:
        problem = f"{left[0]} is of the whole paper; drop it" if left else "a job or a configuration was given but no layer"
        raise SchedcastError(f"{problem}, as in schedcast reproduce deepa --layer {layer or 'fc6'} --config n=16")
    if not request.model:
        model, batch = deepa.LAYER_JOB
        request = replace(request, model=model, batch=batch, precision=Job.precision, machine=request.machine or deepa.PAPER.machine)
    deepa_cost(request, layer=layer, configs=configs or [str(each) for each in deepa.FC6], **asked)


def deepa_cost(request: JobRequest, *, layer: str, configs: Sequence[str], input_config: str | None, as_json: bool) -> None:
    """Print the costs of a layer in each configuration."""
    if request.settings:
        raise SchedcastError(f"--set {request.settings[0]}: no strategy is planned here; drop it")
    configurations = [Configuration.parse(text) for text in configs]
    given = Configuration.parse(input_config) if input_config is not None else None
    job = request.job()
    target = request.target(job)
    machine, model = target.machine, target.costs
    network = Network(job.graph())
    number = layer_called(network, layer)
    rows = layer_costs(network, machine, model, number, configurations, given)
    caution_costs(model, request.profile)
    if as_json:
        print_document(document(job, machine, network.layers[number].name, rows))
        return
    console = terminal()
    show(console, table(rows))
    print_lines(console, [words(network, number, machine, given)])


def document(job: Job, machine: Machine, layer: str, rows: Sequence[LayerCost]) -> dict:
    """The JSON object of the costs."""
    return {
        "schema": SCHEMA,
        "model": job.model,
        "batch_size": job.batch,
        "layer": layer,
        "machine": machine.name,
        "rows": [
            {
                "config": dict(zip(DIMENSIONS, row.configuration.degrees, strict=True)),
                "workers": row.configuration.workers,
                "transfer_s": row.transfer_s,
                "compute_s": row.compute_s,
                "update_s": row.update_s,
                "total_s": row.total_s,
                "exact_bytes": round(row.exact_bytes),
                "exact_transfer_bytes": round(row.exact_transfer_bytes),
                "exact_update_bytes": round(row.exact_update_bytes),
            }
            for row in rows
        ],
    }


def table(rows: Sequence[LayerCost]) -> Table:
    """The costs as a table; the cheapest row is bold."""
    least = min(row.total_s for row in rows)
    cells = [
        {
            "config": str(row.configuration),
            "workers": str(row.configuration.workers),
            "transfer ms": units.ms(row.transfer_s),
            "compute ms": units.ms(row.compute_s),
            "update ms": units.ms(row.update_s),
            "total ms": units.ms(row.total_s),
            "inputs moved": units.memory(row.exact_transfer_bytes),
            "gradients moved": units.memory(row.exact_update_bytes),
        }
        for row in rows
    ]
    return Table(cells, ("config",), styles={n: "bold" for n, row in enumerate(rows) if row.total_s == least and len(rows) > 1})


def words(network: Network, layer: int, machine: Machine, given: Configuration | None) -> str:
    """What the table shows."""
    own = network.layers[layer]
    inputs = f"configuration {given}" if given else "images divided among all devices"
    shape = " x ".join(map(str, own.shape))
    return (
        f"{own.name} ({shape}) on {machine.name}: forward, backward and update. The layers that it reads have {inputs}. Times are the"
        " paper's model. Bytes are those of a plan that sums gradients by a ring."
    )
