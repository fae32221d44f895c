"""The table of ops: what each op of a graph or a plan is, one row an op or a few ops that are alike. To support a new op is to add a row.

>>> row("aten.embedding.default").op_class, row("aten.embedding.default").holds
('gather', 'indices < weight[0]')

An op without a row computes element by element, and its operands may hold any numbers. Overloads of an op share its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

SAVED: Final = "saved"
EVERY_SECOND: Final = "every second"
#: The class of ops that no row gives another one.
ELEMENTWISE = "elementwise"


class Kernels(NamedTuple):
    """By position, the tensor arguments that the kernel of dX reads, and those that the kernel of the other results reads."""

    of_input: tuple[int, ...]
    of_parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of the ops `names`, without their namespaces and overloads.

    `op_class`: ops of one class reach similar shares of a device's peak. A class with a dot is a subclass of the one before the dot, and a
    table that lacks the subclass uses the class.

    `kernels`: of backward ops whose `output_mask`, their last argument, selects the results: a kernel computes dX, and another one dW and
    dB. Each kernel reads what it needs by itself, so that an op with both reads the gradient twice.

    `looks_up`: the position of an argument of which the op reads only the indexed elements.

    `opaque`: the positions of the results that only its own backward op reads. The two kernels were made for each other, and many a
    backward kernel reads them by address, without looking at their strides. So only the forward kernel knows their layout.

    `statistics`: of a norm's backward op, the positions of the arguments with the statistics that its forward op has saved. A GPU's kernels
    want them in float32.

    `holds`: what its operands must hold when it is measured, if random numbers will not do, by the names of its schema. `index < self[dim]`
    are indices below the extent of `self` in dimension `dim`, an argument or a number; `self` alone is the number of its elements, and
    `self[-2:]` that of its last two dimensions. `sorted offsets < indices` are such numbers in order, and `sum repeats = result[0]` are
    numbers with this sum. Several such terms are separated by commas. One word stands for a rule of `calibrate.operands`.

    `rectifies`: its results are not negative, and many are zero.

    `draws`: it draws random numbers from a generator. Ops with dropout inside (attention, recurrent layers) have other forms in a plan.

    `selective`: whether selective checkpointing saves its result (SAVED), or that of every second such op of a block (EVERY_SECOND).
    """

    names: str
    op_class: str = ELEMENTWISE
    kernels: Kernels | None = None
    looks_up: int | None = None
    opaque: tuple[int, ...] = ()
    statistics: tuple[int, ...] = ()
    holds: str = ""
    rectifies: bool = False
    draws: bool = False
    selective: Literal["", "saved", "every second"] = ""


_TABLE = (
    # --- convolutions: torchtitan, whose policy of selective checkpointing this is, has none; they cost as much as products
    Row("convolution _slow_conv2d_forward mkldnn_convolution", "conv", selective=SAVED),
    Row("convolution_backward", "conv", Kernels((0, 2), (0, 1))),  # (gradient, input, weight, ...)
    # --- products: torchtitan saves "all compute ops, except every second mm"; a product with a bias counts as one
    Row("mm addmm", "matmul", selective=EVERY_SECOND),
    Row("_grouped_mm", "matmul", holds="groups", selective=EVERY_SECOND),
    # batched products of activations are attention in its math form: repeated, as in Megatron-LM's selective recomputation
    Row("add_mm bmm baddbmm addmv mv dot", "matmul"),
    # --- attention as one op: in plans, the one for CPUs stands for all of them; the others are those of a model that runs on a GPU
    Row("_scaled_dot_product_flash_attention_for_cpu", "matmul.attention", opaque=(1,), selective=SAVED),  # logsumexp
    Row("_scaled_dot_product_flash_attention_for_cpu_backward", "matmul.attention"),
    Row(
        "_scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_fused_attention_overrideable",
        selective=SAVED,
    ),
    # --- recurrent layers: saved as convolutions are
    Row("rnn gru lstm", "recurrent", selective=SAVED),
    Row("rnn_backward gru_backward lstm_backward", "recurrent"),
    # --- norms; their opaque results are the mean and 1 / deviation, or 1 / root mean square
    Row("native_batch_norm", "norm", opaque=(1, 2)),
    Row("native_batch_norm_backward", "norm", statistics=(5, 6)),
    Row("native_group_norm", "norm", opaque=(1, 2)),
    Row("native_group_norm_backward", "norm", Kernels((0, 1, 2, 3, 4), (0, 1, 2, 3))),  # (gradient, input, mean, rstd, weight, ...)
    Row("native_layer_norm", "norm.layer", opaque=(1, 2)),
    # (gradient, input, shape, mean, rstd, weight, bias, ...)
    Row("native_layer_norm_backward", "norm.layer", Kernels((0, 1, 3, 4, 5), (0, 1, 3, 4)), statistics=(3, 4)),
    Row("_fused_rms_norm", "norm.layer", opaque=(1,)),
    Row("_fused_rms_norm_backward", "norm.layer", Kernels((0, 1, 3, 4), (0, 1, 3)), statistics=(3,)),  # (gradient, input, shape, rstd, ...)
    Row("_weight_norm_interface", opaque=(1,)),  # norms
    # --- softmax and losses
    Row("_log_softmax _log_softmax_backward_data _softmax _safe_softmax _softmax_backward_data", "norm.softmax"),
    Row("cross_entropy cross_entropy_backward", "norm.softmax", holds="labels < logits[1]"),
    Row("nll_loss_forward", "reduction", looks_up=0, holds="target < self[1]"),
    Row("nll_loss2d_forward", looks_up=0, holds="target < self[1]"),
    Row("nll_loss_backward", "gather", looks_up=1, holds="target < self[1]"),
    Row("nll_loss2d_backward", looks_up=1, holds="target < self[1]"),
    Row("log_sigmoid_forward", opaque=(1,)),  # buffer
    Row("_ctc_loss", opaque=(1,)),  # log alpha
    # --- pooling
    Row("max_pool2d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d", "pool"),
    Row(
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward upsample_nearest2d_backward upsample_bilinear2d_backward",
        "pool.backward",
    ),
    Row("max_pool2d_with_indices_backward", "pool.backward", holds="indices < self[-2:]"),
    Row("adaptive_max_pool2d_backward fractional_max_pool2d_backward max_unpool2d", holds="indices < self[-2:]"),
    Row(
        "max_pool3d_with_indices_backward adaptive_max_pool3d_backward fractional_max_pool3d_backward max_unpool3d",
        holds="indices < self[-3:]",
    ),
    # --- reductions
    Row("sum mean amax amin max argmax var var_mean linalg_vector_norm norm", "reduction"),
    # --- tables and indices
    Row("embedding", "gather", looks_up=0, holds="indices < weight[0]"),
    Row("embedding_renorm embedding_renorm_", holds="indices < self[0]"),
    Row("embedding_dense_backward", "gather", holds="indices < num_weights"),
    # bag of each index, sizes of bags, largest indices
    Row("_embedding_bag", "gather", opaque=(1, 2, 3), holds="indices < weight[0], sorted offsets < indices"),
    Row(
        "_embedding_bag_backward",
        "gather",
        holds="indices < num_weights, maximum_indices < num_weights, sorted offsets < indices, sorted offset2bag < grad[0]",
    ),
    Row("index _unsafe_index", "gather", looks_up=0, holds="indexed"),
    Row("index_put index_put_ _index_put_impl_ _unsafe_index_put", "gather", holds="indexed"),
    Row("gather index_select", "gather", looks_up=0, holds="index < self[dim]"),
    Row("index_add index_add_ index_copy scatter scatter_ scatter_add scatter_add_ scatter_reduce", "gather", holds="index < self[dim]"),
    Row("_index_put_impl", holds="indexed"),
    Row("index_copy_ index_fill index_fill_ index_reduce index_reduce_ scatter_reduce_", holds="index < self[dim]"),
    Row("take put put_", holds="index < self"),
    Row("nonzero", holds="sum self = result[0]"),
    Row("repeat_interleave", holds="sum repeats = result[0]"),
    Row("masked_select masked_scatter masked_scatter_", holds="masked"),
    Row("expect", holds="sum value = expected"),
    # --- random numbers
    Row("native_dropout", "random", opaque=(1,), draws=True),  # the mask
    Row("bernoulli bernoulli_", "random", draws=True),
    Row(
        "cauchy cauchy_ exponential exponential_ geometric geometric_ log_normal log_normal_ normal normal_ random random_ uniform "
        "uniform_ rand rand_like randint randint_like randn randn_like randperm "
        "_sample_dirichlet _standard_gamma binomial multinomial poisson rrelu_with_noise rrelu_with_noise_",
        draws=True,
    ),
    # --- element by element
    Row("relu relu_ hardtanh hardtanh_", rectifies=True),
)

#: By name, without namespace and overload.
ROWS: Mapping[str, Row] = MappingProxyType({name: each for each in _TABLE for name in each.names.split()})
_PLAIN = Row("")


def name_of(target: str) -> str:
    """The name of an op without its namespace and overload: `mm` of `aten.mm.default`; that of a bare name is the name."""
    return target.split(".")[1] if "." in target else target


def row(target: str) -> Row:
    """The row of an op, `aten.NAME.OVERLOAD`; that of an op element by element if the table has none."""
    return ROWS.get(name_of(target), _PLAIN)
