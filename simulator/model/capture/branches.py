"""Ops whose result, or its shape, depends on the values of their tensors: `item`, indexing by masks, `nonzero`, `unique` and the like.

They run with the values of the current batch. A check that later steps have the same values becomes an op of the step.
"""

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from simulator.model.capture.known_values import KnownValues, VariableContentError
from traces.errors import Code, SchedcastError

_BY_INDICES = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor})
_MASKS = frozenset({torch.bool, torch.uint8})
_UNIQUE = frozenset({torch.ops.aten._unique2.default, torch.ops.aten.unique_consecutive.default})
_CTC_LOSS = frozenset({torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor})


def depends_on_values(func, args) -> bool:
    """Whether the shape of the op's result, or a result that the host reads, depends on the values of its tensors.

    Of the ops that index, only those with a mask do, although all of them have the tag.
    """
    if func in _BY_INDICES:
        return any(index is not None and index.dtype in _MASKS for index in args[1])
    return _has_such_results(func)


@cache
def _has_such_results(func) -> bool:
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return func is torch.ops.aten.equal.default or bool(tags.intersection(func.tags))


class Branches:
    """Runs such ops for a recorder, which records what they call."""

    def __init__(self, recorder: Any, known: KnownValues):
        self._recorder, self._known = recorder, known

    def run(self, func, args, kwargs) -> Any:
        """Run an op whose result, or its shape, depends on the values of its tensors, for the values that this batch has.

        A check that they are the same becomes an op of the step. Raises SchedcastError for values that change from step to step.
        """
        try:
            if func is torch.ops.aten.equal.default:
                return self._equal(*args)
            if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
                return self._expected(args[0])
            if func in _BY_INDICES:
                return self._by_mask(func, args, kwargs)
            if func in _CTC_LOSS:
                return self._ctc_loss(func, args, kwargs)
            return self._by_content(func, args, kwargs)
        except VariableContentError as error:
            raise SchedcastError(
                f"the training step reads tensor values to decide what to do ({func}) that depend on trainable parameters or random"
                " numbers; expected a step whose ops do not; remove .item(), boolean indexing or value-dependent branches",
                Code.MODEL,
            ) from error

    def _expected(self, tensor: torch.Tensor) -> int | float | bool:
        """Return the one element of a tensor. In every step it is expected to be the same if it depends on the batch."""
        with unset_fake_temporarily():
            number = self._known.content(tensor).item()
        assumed = self._known.assumed(tensor)
        if assumed:
            self._recorder.assume(f"decides by numbers that change in every step what to compute; predicted with {assumed}")
        elif isinstance(tensor, FakeTensor) and self._known.reads_data(tensor):
            with self._recorder:
                torch.ops.schedcast.expect(tensor, float(number))
        return number

    def _equal(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        if first.shape != second.shape:
            return False
        with self._recorder:
            same = torch.ops.aten.all.default(torch.ops.aten.eq.Tensor(first, second))
        return bool(self._expected(same))

    def _by_mask(self, func, args, kwargs) -> torch.Tensor:
        """Index by masks, each of which is expected to select as many elements in every step."""
        indices = []
        for index in args[1]:
            masks = index is not None and index.dtype in _MASKS
            if masks:
                self._expect_count(index)
            indices += [torch.empty(self._count(index), dtype=torch.int64) for _ in index.shape] if masks else [index]
        result = func(args[0], indices)
        self._recorder.record(func, args, kwargs, result)
        return result

    def _by_content(self, func, args, kwargs) -> Any:
        """Run an op whose results have the shapes that they have for the contents of its arguments."""
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if func is torch.ops.aten.masked_select.default:
            self._expect_count(args[1])
            with self._recorder:
                mask = args[1].expand(torch.broadcast_shapes(*(t.shape for t in tensors)))
            results = args[0].new_empty(self._count(mask))
        else:
            if func is torch.ops.aten.nonzero.default:
                self._expect_count(args[0])
            elif func is torch.ops.aten.repeat_interleave.Tensor:
                self._expect_sum(args[0])
            elif func in _UNIQUE and (len(args) < 4 or args[3] is None) and kwargs.get("dim") is None:
                self._expect_distinct(args[0], is_sorted=func is torch.ops.aten.unique_consecutive.default)
            elif self._known.reads_data((args, kwargs)):
                raise SchedcastError(
                    f"the shape of the result of {func} depends on tensor values; expected shapes that are the same in every step;"
                    " compute it in the factory, or use an op with a fixed shape",
                    Code.MODEL,
                )
            results = self._shaped_as(func, {id(tensor): self._known.content(tensor) for tensor in tensors}, args, kwargs)
        self._recorder.record(func, args, kwargs, results)
        return results

    def _ctc_loss(self, func, args, kwargs) -> Any:
        """Run CTC loss. The longest target, which decides the shape of what backward reads, is expected to be as long in every step."""
        log_probs, lengths = args[0], args[3]
        if isinstance(lengths, torch.Tensor):
            with self._recorder:
                longest = torch.ops.aten.max.default(lengths)
            self._expected(longest)
        contents = {id(item): self._known.content(item) for item in args[1:4] if isinstance(item, torch.Tensor)}
        with unset_fake_temporarily():
            contents[id(log_probs)] = torch.zeros(log_probs.shape, dtype=log_probs.dtype)  # no shape depends on them
        results = self._shaped_as(func, contents, args, kwargs)
        self._recorder.record(func, args, kwargs, results)
        return results

    def _shaped_as(self, func, contents: dict[int, torch.Tensor], args, kwargs) -> Any:
        """Fake results of an op with the shapes of those that it has for `contents`, by id of the argument."""
        with unset_fake_temporarily():
            real = func(*tree_map(lambda item: contents.get(id(item), item), args), **kwargs)
        return tree_map(lambda item: torch.empty_strided(item.shape, item.stride(), dtype=item.dtype), real)

    def _count(self, tensor: torch.Tensor) -> int:
        with unset_fake_temporarily():
            return int(self._known.content(tensor).count_nonzero())

    def _expect_count(self, tensor: torch.Tensor) -> None:
        """Expect that in every step as many elements are not zero."""
        with self._recorder:
            mask = tensor if tensor.dtype == torch.bool else torch.ops.aten.ne.Scalar(tensor, 0)
        self._expect_sum(mask)

    def _expect_distinct(self, tensor: torch.Tensor, is_sorted: bool) -> None:
        """Expect that in every step the elements, sorted or as they are, change as often from one to the next."""
        with self._recorder:
            elements = tensor.flatten() if is_sorted else tensor.flatten().sort()[0]
            changes = torch.ops.aten.ne.Tensor(elements[1:], elements[:-1])
        self._expect_sum(changes)

    def _expect_sum(self, tensor: torch.Tensor) -> None:
        with self._recorder:
            total = torch.ops.aten.sum.default(tensor)
        self._expected(total)
