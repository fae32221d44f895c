"""Which ops of PyTorch are pure tensor ops, by their schemas: the rule behind the list `simulator/plan/ops.json`.

After an upgrade of PyTorch, `python -m tests.support.pure_ops` writes the list again.
"""

import json
import re

import torch

from simulator.model.ops import aten_json as _registered  # noqa: F401 - registers torch.ops.schedcast
from simulator.plan.task import LIST, NAMESPACES

#: Types of arguments that name nothing outside the op: no file, storage, stream, or object of a class.
_TYPES = frozenset({"Tensor", "number", "int", "bool", "float", "Device", "Generator", "str"})
#: Arguments in text that choose a variant of the op. Any other text might name a file.
_CHOICES = frozenset({
    "UPLO", "activation", "approximate", "driver", "indexing", "interpolation", "mode", "nonlinearity", "norm", "ord", "pad_mode",
    "padding", "padding_side", "reduce", "rounding_mode", "side",
})  # fmt: skip
#: Parts of names of ops that change more than their results, that trust raw memory, or whose tensors plans do not have.
_OTHERS = re.compile(
    r"^_(test|foobar|nested|sparse|cslt|mps|mkldnn|cudnn_init|cudnn_rnn|cufft|philox|make_|fw_primal|unpack_dual|coalesce|reshape_alias$|"
    r"resize|pin_memory|pack_padded|pad_packed|lazy_clone|copy_from|add_batch_dim|remove_batch_dim|propagate|print|assert|indices|values|"
    r"validate|linalg_check|spdiags|spsolve|to_sparse|to_cpu|triton|efficientzerotensor|autocast|wrapped|dyn_quant|empty_|convert_weight)"
    r"|(?<!fake_)quant|sparse|nested|mkldnn|miopen|_mps|int4pack|int8pack|fbgemm|vulkan|coo_|csr_|csc_|^(set(_|$)|resize|rename|align|mps|"
    r"from_file|pin_memory|data$|record_stream|requires_grad|retain_grad|values|indices|(crow|ccol|col|row)_indices|get_gradients|q_per|"
    r"choose_qparams|_nnpack)"
)


def pure(op: torch._ops.OpOverload) -> bool:
    """Whether an op only computes tensors or numbers from tensors and numbers, and writes nothing but its results or its arguments."""
    namespace, name, _ = str(op).split(".")
    schema = op._schema
    if namespace != "aten":
        return namespace in NAMESPACES
    if _OTHERS.search(name) or torch.Tag.inplace_view in op.tags or any(argument.is_out for argument in schema.arguments):
        return False
    for argument in schema.arguments:
        base = re.sub(r"^(?:Optional|List)\[(.*)\]$", r"\1", re.sub(r"^Optional\[(.*)\]$", r"\1", str(argument.type)))
        base = re.sub(r"^Optional\[(.*)\]$", r"\1", base)
        if base not in _TYPES or (base == "str" and argument.name not in _CHOICES) or str(argument.type) == "Generator":
            return False
    writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    reads = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return writes or any("Tensor" in str(result.type) or (reads and str(result.type) in ("number", "bool")) for result in schema.returns)


def overloads() -> list[torch._ops.OpOverload]:
    """Every op of PyTorch and of this project that a plan could name."""
    ops = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace in NAMESPACES:
            ops.append(getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default"))
    return [op for op in ops if isinstance(op, torch._ops.OpOverload)]


def main() -> None:
    """Write the list: the names of overloads by op."""
    listed: dict[str, list[str]] = {}
    for op in filter(pure, overloads()):
        name, _, overload = str(op).rpartition(".")
        listed.setdefault(name, []).append(overload)
    lines = (f" {json.dumps(name)}: {json.dumps(' '.join(sorted(names)))}" for name, names in sorted(listed.items()))
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
