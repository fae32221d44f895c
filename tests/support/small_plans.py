"""Small hand-made plans for tests, and the functions that build them."""

from simulator.machine.machine import Device, HostLane, Link, Machine, Memory
from simulator.plan.bodies.copy import Copy
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.update import Update
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BACKWARD, GRADIENT, INPUT, PARAMETER, UPDATE, Operand, Storage, Task, Value


def value(name: str, shape: tuple[int, ...], kind: str, device: str = "cuda:0", source: Operand | None = None) -> Value:
    """A contiguous float32 value on a storage of the same name."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return Value(name, shape, tuple(strides), "float32", device, kind, name, source)


def plan_of(tasks: list[Task], values: list[Value], strategy: str = "test", **fields) -> Plan:
    """A plan. Each storage has the size of its value."""
    by_name = {v.name: v for v in values}
    storages = {v.storage: Storage(v.storage, v.operand().bytes, v.device) for v in values}
    return Plan(strategy, tuple(tasks), by_name, storages, **fields)


def mm(name: str, left: Value, right: Value, out: Value, **fields) -> Task:
    """out = left @ right."""
    flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
    body = OpCall("aten.mm.default", '[{"$":0},{"$":1}]', flops=flops)
    return Task(name, body, out.device, reads=(left.operand(), right.operand()), writes=(out.operand(),), **fields)


def sgd(name: str, parameter: Value, gradient: Value, **fields) -> Task:
    """parameter -= lr * gradient."""
    body = Update("sgd", "fused", (parameter.name,), (("lr", 0.1),))
    return Task(name, body, parameter.device, reads=(gradient.operand(),), mutates=(parameter.operand(),), phase=UPDATE, **fields)


X = value("x", (32, 64), INPUT)
W1, W2 = value("w1", (64, 128), PARAMETER), value("w2", (128, 10), PARAMETER)
H, Y = value("h", (32, 128), ACTIVATION), value("y", (32, 10), ACTIVATION)
G1, G2 = value("g1", (64, 128), GRADIENT), value("g2", (128, 10), GRADIENT)


def forward_fused() -> Plan:
    """Two linear layers trained by SGD with forward-fusion: each update comes before its layer's forward and has lag 1."""
    transposed = Operand("h", (128, 32), (1, 128), "float32")
    return plan_of(
        [
            sgd("update.1", W1, G1, lag=1, layer="1"),
            mm("forward.1", X, W1, H, layer="1"),
            sgd("update.2", W2, G2, lag=1, layer="2"),
            mm("forward.2", H, W2, Y, layer="2"),
            Task(
                "backward.2",
                OpCall("aten.mm.default", flops=8e4),
                "cuda:0",
                reads=(transposed, Y.operand()),
                writes=(G2.operand(),),
                phase=BACKWARD,
                layer="2",
            ),
            Task(
                "backward.1",
                OpCall("aten.mm.default", flops=5e5),
                "cuda:0",
                reads=(X.operand(), Y.operand()),
                writes=(G1.operand(),),
                phase=BACKWARD,
                layer="1",
            ),
        ],
        [X, W1, W2, H, Y, G1, G2],
        "forward-fusion",
        losses=("y",),
        gradients={"w1": G1.operand(), "w2": G2.operand()},
        options={"form": "fused", "degrees": [1, 2]},
        semantics={"staleness": {"0": 0}},
    )


def machine(devices: int = 1, levels: int = 3) -> Machine:
    """Identical GPUs with round numbers: 10 SMs, 1 TFLOP/s, 100 GB/s, and links of 10 GB/s."""
    names = [f"cuda:{i}" for i in range(devices)]
    return Machine(
        "toy",
        tuple(Device(name, "gpu", 10, {"fp32": 1e12}, f"memory:{i}", priority_levels=levels) for i, name in enumerate(names)),
        tuple(Memory(f"memory:{i}", 16 * 10**9, 1e11, 4 * 10**6) for i in range(devices)),
        (HostLane("host", tuple(names), dispatch_s=5e-6),),
        tuple(Link(a, b, 1e-5, 1e10) for a in names for b in names if a != b),
    )


def copied() -> Plan:
    """A plan that copies one layer's output to a second device and uses it there."""
    copy, w, z = (
        value("h'", (32, 128), ACTIVATION, "cuda:1"),
        value("w2'", (128, 10), PARAMETER, "cuda:1"),
        value("z", (32, 10), ACTIVATION, "cuda:1"),
    )
    return plan_of(
        [
            mm("forward.1", X, W1, H),
            Task("send", Copy("cuda:0", "cuda:1"), "cuda:1", 1, reads=(H.operand(),), writes=(copy.operand(),), phase="transfer"),
            mm("forward.2", copy, w, z),
        ],
        [X, W1, H, copy, w, z],
    )
