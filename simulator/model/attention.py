"""Which kernel attention runs on a GPU: the one that PyTorch chooses, or cuDNN's, which uses special instructions of newer chips."""

from dataclasses import replace

from simulator.model.graph import TrainingGraph
from simulator.plan.bodies.op_class import op_class
from simulator.plan.bodies.opcall import DROPOUT, with_kernel

#: What PyTorch chooses, and `torch.nn.attention.SDPBackend.CUDNN_ATTENTION`. TransformerEngine's attention is cuDNN's too.
PYTORCH, CUDNN = ATTENTIONS = ("pytorch", "cudnn")
#: Precisions of jobs whose attention is in 16 bits, the only ones that cuDNN has kernels for.
HALF = frozenset({"bf16", "mixed", "amp", "amp-fp16"})


def drops_weights(graph: TrainingGraph) -> bool:
    """Whether an attention drops weights. Only capture calls this softmax, for `scaled_dot_product_attention` with dropout."""
    weights = {op.writes[0].value for op in graph.ops if op.body.target == "aten._safe_softmax.default"}
    return any(op.body.target == DROPOUT and op.reads[0].value in weights for op in graph.ops)


def with_attention(graph: TrainingGraph, kernel: str) -> TrainingGraph:
    """The graph whose attention runs a kernel of `ATTENTIONS`; ops in other types than 16 bits keep their kernel."""
    if kernel == PYTORCH:
        return graph
    ops = []
    for op in graph.ops:
        may = op_class(op.body.target) == "matmul.attention" and op.inputs[0].dtype in ("bfloat16", "float16")
        ops.append(replace(op, body=with_kernel(op.body, kernel)) if may else op)
    return replace(graph, ops=tuple(ops))
