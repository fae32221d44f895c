"""Attention and the loss of devices that divide the tokens of each sequence: context parallelism.

"The Llama 3 Herd of Models" (2024), section 3.3.2: the keys and values of all tokens are gathered, and each device computes attention of
its own queries to them. Under a causal mask later queries see more keys, so a sequence is cut into twice as many chunks as there are
devices, and a device has chunks r and 2N - 1 - r, which together see as many keys as those of any other device. A chunk attends causally
to itself and without a mask to what lies before it. The two results are merged by the logarithms of their sums of exponentials, and the
backward of each is the kernel's own, given the merged result (Liu et al., "Ring Attention", 2023).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.model.division.local import LocalTensors
from simulator.model.division.placement import PARTIAL, WHOLE, Placement
from simulator.model.division.vocabulary import summed_loss, with_dim
from simulator.model.graph import Op, arguments_of
from simulator.plan.bodies.opcall import ATTENTION, DROPOUT, OpCall
from simulator.plan.task import Operand
from simulator.plan.views import view_step, with_views
from traces.errors import Code, SchedcastError

BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"


class Context:
    """Runs the ops that need tokens of other devices: attention, and the loss."""

    def __init__(self, local: LocalTensors):
        self._local = local
        #: By the logarithms of a causal attention's sums, those of the device's two chunks.
        self._logarithms: dict[str, list[Operand]] = {}

    def runs(self, op: Op) -> bool:
        """Add the ops of a device in the place of `op`, if it works along tokens that are divided. Returns whether it did."""
        target = op.body.target
        if target in (ATTENTION, DROPOUT) and op.body.random and self._placement(op.inputs[0]).dim is not None:
            raise SchedcastError("context parallelism (cp) draws no parts of dropout masks; set the model's dropout to 0", Code.MODEL)
        if target == ATTENTION and self._placement(_argument(op, 0)).dim == 2:
            self._attention(op)
        elif target == BACKWARD and self._placement(_argument(op, 1)).dim == 2:
            self._attention_backward(op)
        elif target == "aten.nll_loss_forward.default" and (cut := self._placement(op.inputs[0])).dim == 0 and not op.writes[0].shape:
            wanted = (cut, cut, *(WHOLE for _ in op.inputs[2:]))
            reads = [self._local.placed(op, operand, each) for operand, each in zip(op.inputs, wanted, strict=True)]
            summed_loss(self._local, op, reads, arguments_of(op))
        else:
            return False
        return True

    def _placement(self, operand: Operand) -> Placement:
        """How an operand is cut; WHOLE if it is not."""
        return next((placement for placement, *_ in self._local.seen(operand) if placement.dim is not None), WHOLE)

    # --- attention

    def _read(self, op: Op, first: int) -> tuple[list[Operand], list[Operand], list[Operand], Placement]:
        """The device's part of queries, keys and values, from argument `first` on; keys and values of all tokens; mask; cut of queries."""
        local = self._local
        query, key, value = (_argument(op, first + at) for at in range(3))
        cut, own = self._placement(query), []
        if _is_causal(op, first):
            if {self._placement(key), self._placement(value)} != {cut}:
                raise SchedcastError(f"context parallelism (cp) cannot divide {op.name}: keys are not divided as queries are", Code.MODEL)
            own = [local.placed(op, operand, cut) for operand in (key, value)]
        mask = (json.loads(op.body.kwargs).get("attn_mask") or {"$": None})["$"]
        masks = [op.inputs[mask]] if mask is not None else []
        rows = len(masks[0].shape) - 2 if masks else 0
        masks = [local.placed(op, each, cut.at(rows, cut.blocks) if each.shape[rows] > 1 else WHOLE) for each in masks]
        return [local.placed(op, query, cut), *own], [self._all(op, operand, cut) for operand in (key, value)], masks, cut

    def _all(self, op: Op, operand: Operand, cut: Placement) -> Operand:
        """Keys or values, [sequences, heads, tokens, width], of all tokens. Backward gathers them again, so that they need not be saved."""
        if self._placement(operand) != cut:
            return self._local.placed(op, operand, WHOLE)
        part = _exchanged(self._local.placed(op, operand, cut))
        return _exchanged(self._local.all_tokens(part, cut.at(1, cut.blocks)))

    def _call(
        self,
        op: Op,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        masks: Sequence[Operand] = (),
        chunk: str = "",
        share: float = 0.0,
    ) -> None:
        """Add the op on other operands. `chunk`: of queries, whose `share` of the FLOPs it takes; it is causal if it names no more."""
        arguments, named = arguments_of(op), json.loads(op.body.kwargs)
        arguments[: len(reads)] = [{"$": at} for at in range(len(reads))]
        if masks:
            named["attn_mask"] = {"$": len(reads)}
        if chunk:
            arguments[len(reads) + 1] = "earlier" not in chunk
        flops = op.body.flops * (share or 1 / self._local.degree)
        body = replace(op.body, kwargs=json.dumps(named, separators=(",", ":")), flops=flops)
        named_op = replace(op, name=f"{op.name} {chunk}".rstrip(), body=body)
        self._local.replace(named_op, (*reads, *masks), writes, arguments)

    def _chunks(self, op: Op) -> Iterator[tuple[int, str, int, float]]:
        """Yield the parts of a causal attention: the number of a chunk, a name, how many chunks are before it, and the share of FLOPs.

        A chunk first attends to itself; later, if `before` is not 0, to what lies before it, which takes as long as twice as many.
        """
        of_chunk = 1 / (2 * self._local.degree) ** 2
        for half, before in enumerate(self._local.chunks):
            yield half, f"chunk {half}", 0, of_chunk
            if before:
                yield half, f"chunk {half} earlier", before, 2 * before * of_chunk

    def _attention(self, op: Op) -> None:
        local, (own, *of_own), keys, masks, cut = self._local, *self._read(op, 0)
        if not of_own:
            self._call(op, (own, *keys), [local.written(operand, cut) for operand in op.writes], masks)
            return
        out, logarithms = op.writes
        length = own.shape[2] // 2
        made: list[tuple[Operand, Operand]] = []
        for half, name, before, share in self._chunks(op):
            seen = [_tokens(each, 0, before * length) for each in keys] if before else [_half(each, half) for each in of_own]
            shape = (*own.shape[:2], length, out.shape[3])
            added = (
                local.scratch(f"{out.value}#{name}", shape, out.dtype, out.strides),
                local.scratch(f"{logarithms.value}#{name}", shape[:3], logarithms.dtype, logarithms.strides),
            )
            self._call(op, (_half(own, half), *seen), added, chunk=name, share=share)
            made.append(self._merged(f"{out.value}#chunk {half}", made.pop(), added) if before else added)
        local.versions[out.value] = {cut: self._joined(out, [each for each, _ in made])}
        self._logarithms[logarithms.value] = [each for _, each in made]

    def _joined(self, made: Operand, halves: Sequence[Operand]) -> Operand:
        """What two chunks, [sequences, heads, tokens, width] each, are together."""
        both = [_exchanged(each) for each in halves]
        sequences, length, *rest = both[0].shape
        names = [{"$": 0}, {"$": 1}]
        return _exchanged(self._local.call(f"{made.value}#chunks", "cat.default", [names, 1], both, (sequences, 2 * length, *rest)))

    def _merged(self, name: str, own: tuple[Operand, Operand], added: tuple[Operand, Operand]) -> tuple[Operand, Operand]:
        """The results of attention to two sets of keys as that of attention to both."""
        local = self._local
        (out, logarithms), (out_added, logarithms_added) = ([_exchanged(each) for each in pair] for pair in (own, added))
        rows, both = logarithms.shape, (logarithms, logarithms_added)
        more = local.call(f"{name} more", "sub.Tensor", [{"$": 1}, {"$": 0}], both, rows)
        share = local.call(f"{name} share", "sigmoid.default", [{"$": 0}], (more,), rows)
        if share.dtype != out.dtype:
            kwargs = OpCall.cast(out.dtype).kwargs
            share = local.call(
                f"{name} share as {out.dtype}", "_to_copy.default", [{"$": 0}], reads=(share,), shape=rows, dtype=out.dtype, kwargs=kwargs
            )
        parts = (out, out_added, with_dim(share, 3))
        merged = local.call(f"{name} merged", "lerp.Tensor", [{"$": 0}, {"$": 1}, {"$": 2}], parts, out.shape)
        total = local.call(f"{name} logarithms", "logaddexp.default", [{"$": 0}, {"$": 1}], both, rows)
        return _exchanged(merged), _exchanged(total)

    def _attention_backward(self, op: Op) -> None:
        local, (own, *of_own), keys, masks, cut = self._local, *self._read(op, 1)
        gradient, out = (local.placed(op, _argument(op, at), cut) for at in (0, 4))
        logarithms = _argument(op, 5)
        if not of_own:
            of_keys = [local.scratch(f"{o.value}#all", each.shape, o.dtype, o.strides) for o, each in zip(op.writes[1:], keys, strict=True)]
            reads = (gradient, own, *keys, out, local.placed(op, logarithms, cut))
            self._call(op, reads, (local.written(op.writes[0], cut), *of_keys), masks)
            for operand, made, at in zip(op.writes[1:], of_keys, (2, 3), strict=True):
                if self._placement(_argument(op, at)) == cut:
                    length = made.shape[2] // (2 * local.degree)
                    chunks = [_tokens(made, at * length, (at + 1) * length) for at in range(2 * local.degree)]
                    self._scatter(operand, chunks, cut)
                else:
                    local.versions[operand.value] = {PARTIAL: made}
            return
        length = own.shape[2] // 2
        made_by: dict[str, list[Operand]] = {}
        for half, name, before, share in self._chunks(op):
            seen = [_tokens(each, 0, before * length) for each in keys] if before else [_half(each, half) for each in of_own]
            made_by[name] = [
                local.scratch(f"{o.value}#{name}", like.shape, o.dtype, o.strides)
                for o, like in zip(op.writes, (_half(own, half), *seen), strict=True)
            ]
            reads = (_half(gradient, half), _half(own, half), *seen, _half(out, half), self._logarithms[logarithms.value][half])
            self._call(op, reads, made_by[name], chunk=name, share=share)
            if before:
                self._add_to(made_by[f"chunk {half}"][0], made_by[name][0])
        local.versions[op.writes[0].value] = {cut: self._joined(op.writes[0], [made_by[f"chunk {half}"][0] for half in (0, 1)])}
        for at, operand in enumerate(op.writes[1:], 1):
            self._scatter_gradients(operand, {name: made[at] for name, made in made_by.items()}, cut)

    def _scatter_gradients(self, made: Operand, by_chunk: Mapping[str, Operand], cut: Placement) -> None:
        """Sum the gradients of keys or values over the devices, from those of the device's two chunks and of what lies before each."""
        local, (first, second) = self._local, self._local.chunks
        own, later, seen = (by_chunk[name] for name in ("chunk 0", "chunk 1", "chunk 1 earlier"))
        length = own.shape[2]
        self._add_to(_tokens(seen, first * length, (first + 1) * length), own)
        if first:
            self._add_to(_tokens(seen, 0, first * length), by_chunk["chunk 0 earlier"])
        chunks = [*(_tokens(seen, at * length, (at + 1) * length) for at in range(second)), later]
        unseen = 2 * local.degree - len(chunks)
        if unseen:
            sequences, heads, _, width = own.shape
            kwargs = json.dumps({"dtype": {"dtype": made.dtype}, "device": {"device": None}}, separators=(",", ":"))
            shape = (sequences, length, heads, width)
            none = local.call(
                f"{made.value}#unseen", "full.default", [list(shape), 0.0], reads=(), shape=shape, dtype=made.dtype, kwargs=kwargs
            )
            chunks += [_exchanged(none)] * unseen
        self._scatter(made, chunks, cut)

    def _scatter(self, made: Operand, chunks: Sequence[Operand], cut: Placement) -> None:
        """Sum all chunks of the gradient of keys or values over the devices, each of which retains its two."""
        own = self._local.summed_chunks([_exchanged(each) for each in chunks], made.value)
        sequences, _, length, *rest = own.shape
        view = view_step("aten.view.default", [sequences, 2 * length, *rest])
        self._local.versions[made.value] = {cut: _exchanged(with_views(own, [view]))}

    def _add_to(self, total: Operand, addend: Operand) -> None:
        self._local.change(f"{addend.value}/add_", "add_.Tensor", [{"$": 1}, {"$": 0}], (addend,), (total,))


def _argument(op: Op, at: int) -> Operand:
    """The tensor that is argument number `at`."""
    return op.inputs[arguments_of(op)[at]["$"]]


def _is_causal(op: Op, first: int) -> bool:
    """Whether an attention is causal, whose queries are argument `first`: (query, key, value, dropout, causal), or in backward
    (gradient, query, key, value, out, logarithms, dropout, causal).
    """
    return arguments_of(op)[7 if first else 4 :][:1] == [True]


def _exchanged(operand: Operand) -> Operand:
    """[sequences, heads, tokens, ...] as [sequences, tokens, heads, ...], and back: as fused kernels lay out what they make."""
    return with_views(operand, [view_step("aten.transpose.int", 1, 2)])


def _tokens(operand: Operand, first: int, end: int) -> Operand:
    """Some tokens of [sequences, heads, tokens, width]."""
    if (first, end) == (0, operand.shape[2]):
        return operand
    return with_views(operand, [view_step("aten.slice.Tensor", 2, first, end)])


def _half(operand: Operand, half: int) -> Operand:
    length = operand.shape[2] // 2
    return _tokens(operand, half * length, (half + 1) * length)
