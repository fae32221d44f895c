"""The tokens of a step."""

from simulator.model.job import Job


def tokens_of(job: Job) -> int | None:
    """Tokens that a step trains on; None for a model whose inputs are no rows of tokens."""
    graph = job.captured(job.microbatch, job.accumulate, fused_dropout=False)
    rows = (graph.values[name] for name in graph.inputs)
    lengths = [value.shape[1] for value in rows if len(value.shape) == 2 and "int" in value.dtype]
    return lengths[0] * job.batch if lengths else None
