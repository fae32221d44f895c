"""`schedcast reproduce deepa --layer`: what dividing one layer costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.placement import Placement
from calibrate.profiles import target_for
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
from ui.present.tables import Grid, print_lines
from ui.present.tables import console as terminal
from ui.service import jobs

SCHEMA = "schedcast.deepa-cost/1"


def of_paper(paper: str | None, job: Job | None, *, layer: str | None, left: Sequence[str], configs: Sequence[str], **asked: Any) -> None:
    """Print the costs of a layer of `job` (default: the job and the machine of the DeePa paper), as `deepa_cost` does.

    `left`: options of the command that are of whole papers. Raises SchedcastError for them, for other papers, and without a layer.
    """
    if paper != deepa.PAPER.name:
        raise SchedcastError(f"one layer's costs are those of the deepa paper: schedcast reproduce deepa --layer {layer or 'fc6'}")
    if layer is None or left:
        problem = f"{left[0]} is of the whole paper; leave it out" if left else "a job or a configuration was given but no layer"
        raise SchedcastError(f"{problem}, as in schedcast reproduce deepa --layer {layer or 'fc6'} --config n=16")
    if asked["machine_name"] is None and asked["profile"] is None and job is None:
        asked["machine_name"] = deepa.PAPER.machine
    deepa_cost(job or Job(*deepa.LAYER_JOB), layer=layer, configs=configs or [str(each) for each in deepa.FC6], **asked)


def deepa_cost(
    job: Job,
    *,
    settings: Sequence[str],
    layer: str,
    configs: Sequence[str],
    input_config: str | None,
    machine_name: str | None,
    profile: Path | None,
    placement: Placement,
    as_json: bool,
) -> None:
    """Print the costs of a layer in each configuration."""
    if settings:
        raise SchedcastError(f"--set {settings[0]}: no strategy is planned here; leave it out")
    configurations = [Configuration.parse(text) for text in configs]
    given = Configuration.parse(input_config) if input_config is not None else None
    target = target_for(job, profile, machine_name, placement)
    machine, model = target.machine, target.costs
    network = Network(job.graph())
    number = layer_called(network, layer)
    rows = layer_costs(network, machine, model, number, configurations, given)
    jobs.caution(model, profile)
    if as_json:
        print_document(document(job, machine, network.layers[number].name, rows))
        return
    console = terminal()
    console.print(table(rows))
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


def table(rows: Sequence[LayerCost]) -> Grid:
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
    return Grid(cells, ("config",), styles={n: "bold" for n, row in enumerate(rows) if row.total_s == least and len(rows) > 1})


def words(network: Network, layer: int, machine: Machine, given: Configuration | None) -> str:
    """What the table shows."""
    own = network.layers[layer]
    inputs = f"configuration {given}" if given else "images divided among all devices"
    shape = " x ".join(map(str, own.shape))
    return (
        f"{own.name} ({shape}) on {machine.name}: forward, backward and update. The layers that it reads have {inputs}. Times are the"
        " paper's model. Bytes are those of a plan that sums gradients by a ring."
    )
