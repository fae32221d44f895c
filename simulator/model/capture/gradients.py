"""Finish a captured graph: remove dead ops, give each gradient a separate storage, and assign the roles dX, dW and dB."""

from dataclasses import replace

from simulator.model.graph import CHECK, Op, TrainingGraph
from simulator.plan.bodies.op_class import op_class
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import AGAIN, BACKWARD, BUFFER, GRADIENT, PARAMETER, Operand, Value


def finish(graph: TrainingGraph) -> TrainingGraph:
    """Apply the three steps in order."""
    return _roles(_own_storages(live(graph)))


def live(graph: TrainingGraph) -> TrainingGraph:
    """Remove ops that contribute neither to the loss, nor to a gradient, nor to a change of a buffer or parameter, nor to a check."""
    values = graph.values
    needed = {values[graph.loss].storage} | {values[o.value].storage for o in graph.gradients.values()}
    carried = {v.storage for v in values.values() if v.kind in (PARAMETER, BUFFER)}
    live = []
    for op in reversed(graph.ops):
        changed = {values[o.value].storage for o in (*op.writes, *op.mutates)}
        if op.body.target == CHECK or not (changed.isdisjoint(needed) and changed.isdisjoint(carried)):
            live.append(op)
            needed |= {values[o.value].storage for o in op.inputs}
    ops = tuple(reversed(live))
    used = {o.value for op in ops for o in (*op.inputs, *op.writes)} | set(graph.inputs) | set(graph.layers) | {graph.loss}
    used |= {name for name, value in values.items() if value.kind == BUFFER}
    remaining = {name: value for name, value in values.items() if name in used}
    storages = {value.storage for value in remaining.values()}
    sizes = {name: size for name, size in graph.storage_bytes.items() if name in storages}
    return replace(graph, ops=ops, values=remaining, storage_bytes=sizes)


def _own_storages(graph: TrainingGraph) -> TrainingGraph:
    """Copy gradients that share a storage or have other strides than their parameter, as autograd's accumulation does."""
    values, sizes, ops = dict(graph.values), dict(graph.storage_bytes), list(graph.ops)
    gradients, used_storages = {}, set()
    for parameter, operand in graph.gradients.items():
        value, like = values[operand.value], values[parameter]
        own = value.kind == GRADIENT and value.storage not in used_storages and operand.bytes == sizes[value.storage]
        if own and operand.strides == like.strides:
            used_storages.add(value.storage)
            gradients[parameter] = operand
            continue
        name = f"{parameter}/gradient"
        values[name] = Value(name, like.shape, like.strides, dtype=like.dtype, device="", kind=GRADIENT)
        sizes[name] = sizes[like.storage] if like.storage == parameter else like.operand().bytes
        layer = graph.layers[parameter]
        layout = "contiguous_format" if _is_contiguous(like) else "channels_last"
        body = OpCall("aten.clone.default", '[{"$":0}]', f'{{"memory_format":{{"memory_format":"{layout}"}}}}')
        ops.append(Op(name, body, BACKWARD, layer=layer, reads=(operand,), writes=(values[name].operand(),)))
        gradients[parameter] = values[name].operand()
    return replace(graph, ops=_place_copies(ops, graph.values), values=values, storage_bytes=sizes, gradients=gradients)


def _is_contiguous(value: Value) -> bool:
    expected = 1
    for extent, stride in zip(reversed(value.shape), reversed(value.strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _place_copies(ops: list[Op], values) -> tuple[Op, ...]:
    """Move each appended copy to directly after the last op that changes the storage it reads."""
    copies = [op for op in ops if op.name.endswith("/gradient")]
    placed = [op for op in ops if not op.name.endswith("/gradient")]
    for copy in copies:
        storage = values[copy.reads[0].value].storage
        last = max((i for i, op in enumerate(placed) if any(_on(o, storage, values) for o in (*op.writes, *op.mutates))), default=-1)
        placed.insert(last + 1, copy)
    return tuple(placed)


def _on(operand: Operand, storage: str, values) -> bool:
    return operand.value in values and values[operand.value].storage == storage


def _roles(graph: TrainingGraph) -> TrainingGraph:
    """Assign each backward op a role: dW or dB if its results contribute only to gradients of the op's own layer, else dX.

    A layer that is used twice reads its own dX again. Therefore an op whose result a product of the layer reads has the role dX too.
    """
    owner = {graph.values[o.value].storage: name for name, o in graph.gradients.items()}
    contributes_to: dict[str, frozenset[str]] = {}  # storage -> parameters whose gradients depend on it
    multiplied: set[str] = set()
    ops = []
    for op in reversed(graph.ops):
        if op.phase != BACKWARD:
            ops.append(op)
            continue
        changed = [graph.values[operand.value].storage for operand in (*op.writes, *op.mutates)]
        reached: frozenset[str] = frozenset()
        for storage in changed:
            reached |= contributes_to.get(storage, frozenset())
            reached |= frozenset({owner[storage]} if storage in owner else ())
        reached = _truncated(reached)
        used = [graph.values[operand.value].storage for operand in op.inputs]
        for storage in used:
            contributes_to[storage] = _truncated(contributes_to.get(storage, frozenset()) | reached)
        role = "dX" if AGAIN in op.name or multiplied.intersection(changed) else _role(op, reached, graph)
        if op_class(op.body.target) in ("conv", "matmul", "recurrent"):
            multiplied.update(used)
        ops.append(replace(op, gradient=role))
    return replace(graph, ops=_unique(ops[::-1]))


def _truncated(names: frozenset[str]) -> frozenset[str]:
    """Keep at most nine names. A layer owns at most eight parameters, so nine are enough to know that several layers are reached."""
    return frozenset(sorted(names)[:9]) if len(names) > 9 else names


def _role(op: Op, reached: frozenset[str], graph: TrainingGraph) -> str:
    if not reached or any(graph.layers[name] != op.layer for name in reached):
        return "dX"
    return "dB" if all("bias" in name.rpartition(".")[2] for name in reached) else "dW"  # bias_hh_l0 of a recurrent layer too


def _unique(ops: list[Op]) -> tuple[Op, ...]:
    """Name backward ops by layer, aten op and role; number those with the same name."""
    uses: dict[str, int] = {}
    named = []
    for op in ops:
        name = op.name
        if op.phase == BACKWARD and AGAIN not in name:
            name = f"{name.split('#')[0]}.{op.gradient}"
            uses[name] = uses.get(name, 0) + 1
            name = name if uses[name] == 1 else f"{name}#{uses[name]}"
        named.append(replace(op, name=name))
    return tuple(named)
