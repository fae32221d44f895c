"""Memory under autocast: casts of weights live until backward has read them, and activations have half the size."""

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import carried_bytes
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast
from tests.support import mlp
from tests.support.jobs import planned


def forecast_of(model, batch, precision):
    job, machine = Job(model, batch, precision=precision), load_machine("a100")
    return forecast(planned("baseline", job, machine), machine, CostModel(machine))


def test_the_cast_of_a_weight_is_held_until_the_gradient_by_the_layers_input_is_known():
    plan = forecast_of(f"{mlp.__file__}:wide", 4, "amp").plan
    casts = {task.reads[0].value: task.writes[0] for task in plan.tasks if "_to_copy" in task.name and task.phase == "forward"}
    readers = {name: [task.name for task in plan.tasks if cast.value in {o.value for o in task.reads}] for name, cast in casts.items()}
    assert readers["1.weight"] == ["1/addmm", "1/mm.dX"]
    assert readers["0.weight"] == ["0/addmm"], "nobody asks for the gradient by the model's input"
    assert casts["1.weight"].bytes == 2 * 3 * 5


def test_a_cnn_takes_little_more_than_half_the_memory_besides_its_parameters():
    held = {}
    for precision in ("fp32", "bf16", "amp"):
        predicted = forecast_of("resnet18", 64, precision)
        held[precision] = sum(predicted.memory_bytes.values()) - sum(carried_bytes(predicted.plan).values())
    assert 0.5 * held["fp32"] <= held["bf16"] < held["amp"] < 0.6 * held["fp32"]
