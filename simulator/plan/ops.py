"""The table of ops: what each op of a graph or a plan is, one row an op or a few ops that are alike. To support a new op is to add a row.

>>> row("aten.embedding.default").op_class, row("aten.embedding.default").holds
('gather', 'indices < weight[0]')
>>> row("aten.addmm.default").divides
'(m n), m k^, k^ n -> m n'

An op without a row costs what an op does that computes element by element; it runs on whole tensors, which may hold any numbers. Overloads
of an op share its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from simulator.plan.index_space import EACH

SAVED: Final = "saved"
EVERY_SECOND: Final = "every second"
#: The class of ops that no row gives another one.
ELEMENTWISE = "elementwise"


class Kernels(NamedTuple):
    """By position, the tensor arguments that the kernel of dX reads, and those that the kernel of the other results reads."""

    of_input: tuple[int, ...]
    of_parameters: tuple[int, ...]


class Attention(NamedTuple):
    """Of an op of attention, the positions of the query (the key follows it) and of whether it is causal, and the products that it computes
    as a multiple of those of forward.
    """

    query: int
    causal: int
    passes: float


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of the ops `names`, without their namespaces and overloads.

    `divides`: along which dimensions an op may be divided among devices, as `simulator.plan.index_space` reads it; empty: an op that runs
    on whole tensors only.

    `linear`: it makes addends of its result of addends of all inputs. A sum with a number does not: every device would add it.

    `op_class`: ops of one class reach similar shares of a device's peak. A class with a dot is a subclass of the one before the dot, and a
    table that lacks the subclass uses the class.

    `kernels`: of backward ops whose `output_mask`, their last argument, selects the results: a kernel computes dX, and another one dW and
    dB. Each kernel reads what it needs by itself, so that an op with both reads the gradient twice.

    `multiplies`: it multiplies its last two inputs, but for those that it changes.

    `attention`: it is attention as one op.

    `weight`: the position of a convolution's weight; stride, padding, dilation, whether it is transposed, two more arguments and the number
    of groups follow.

    `running`: the positions of running statistics, which the op changes in training although its schema does not say so. Its results do not
    depend on them.

    `looks_up`: the position of an argument of which the op reads only the indexed elements.

    `opaque`: the positions of the results that only its own backward op reads. The two kernels were made for each other, and many a
    backward kernel reads them by address, without looking at their strides. So only the forward kernel knows their layout.

    `statistics`: of a norm's backward op, the positions of the arguments with the statistics that its forward op has saved. A GPU's kernels
    want them in float32.

    `channel_passes`: how often PyTorch's own kernel, which has a block for each channel, goes through it.

    `holds`: what its operands must hold when it is measured, if random numbers will not do, by the names of its schema. `index < self[dim]`
    are indices below the extent of `self` in dimension `dim`, an argument or a number; `self` alone is the number of its elements, and
    `self[-2:]` that of its last two dimensions. `sorted offsets < indices` are such numbers in order, `ends offsets = total_L` the ends of
    equal groups of so many rows together, and `sum repeats = result[0]` numbers with this sum. Several such terms are separated by commas.
    One word stands for a rule of `calibrate.operands`.

    `rectifies`: its results are not negative, and many are zero.

    `draws`: it draws random numbers from a generator. Ops with dropout inside (attention, recurrent layers) have other forms in a plan.

    `selective`: whether selective checkpointing saves its result (SAVED), or that of every second such op of a block (EVERY_SECOND).
    """

    names: str
    divides: str = ""
    op_class: str = ELEMENTWISE
    linear: bool = False
    kernels: Kernels | None = None
    multiplies: bool = False
    attention: Attention | None = None
    weight: int | None = None
    running: tuple[int, ...] = ()
    looks_up: int | None = None
    opaque: tuple[int, ...] = ()
    statistics: tuple[int, ...] = ()
    channel_passes: int = 0
    holds: str = ""
    rectifies: bool = False
    draws: bool = False
    selective: Literal["", "saved", "every second"] = ""


_TABLE = (
    # --- convolutions: torchtitan, whose policy of selective checkpointing this is, has none; they cost as much as products
    Row("convolution", op_class="conv", weight=1, selective=SAVED),
    Row("_slow_conv2d_forward mkldnn_convolution", op_class="conv", selective=SAVED),
    Row("convolution_backward", op_class="conv", kernels=Kernels((0, 2), (0, 1)), weight=2),  # (gradient, input, weight, ...)
    # --- products: torchtitan saves "all compute ops, except every second mm"; a product with a bias counts as one
    Row("mm", "m k+, k+ n -> m n", op_class="matmul", multiplies=True, selective=EVERY_SECOND),
    # each device would add the bias
    Row("addmm", "(m n), m k^, k^ n -> m n", op_class="matmul", multiplies=True, selective=EVERY_SECOND),
    Row("_grouped_mm", op_class="matmul", holds="groups", selective=EVERY_SECOND),
    # batched products of activations are attention in its math form: repeated, as in Megatron-LM's selective recomputation
    Row("bmm", "b m k+, b k+ n -> b m n", op_class="matmul", multiplies=True),
    Row("add_mm baddbmm", op_class="matmul", multiplies=True),
    Row("addmv mv dot", op_class="matmul"),
    # --- attention as one op, divided by heads or by sequences: in plans, the one for CPUs stands for those that run on a GPU
    Row(
        "_scaled_dot_product_flash_attention_for_cpu",
        "t* q^ d^, t* k^ d^, t* k^ e^, ?, ?, attn_mask=(t* q^ k^) -> t* q^ e^, t* q^",
        op_class="matmul.attention",
        attention=Attention(query=0, causal=4, passes=1.0),
        opaque=(1,),  # logsumexp
        selective=SAVED,
    ),
    Row(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "t* q^ e^, t* q^ d^, t* k^ d^, t* k^ e^, t* q^ e^, t* q^, ?, ?, attn_mask=(t* q^ k^) -> t* q^ d^, t* k^ d^, t* k^ e^",
        op_class="matmul.attention",
        attention=Attention(query=1, causal=7, passes=2.5),
    ),
    Row(
        "_scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_fused_attention_overrideable",
        selective=SAVED,
    ),
    # --- recurrent layers: saved as convolutions are
    Row("rnn gru lstm", op_class="recurrent", selective=SAVED),
    Row("rnn_backward gru_backward lstm_backward", op_class="recurrent"),
    # --- norms; their opaque results are the mean and 1 / deviation, or 1 / root mean square
    Row("native_batch_norm", op_class="norm", running=(3, 4), opaque=(1, 2), channel_passes=1),
    Row("native_batch_norm_backward", op_class="norm", statistics=(5, 6), channel_passes=2),
    Row("native_group_norm", op_class="norm", opaque=(1, 2)),
    Row("native_group_norm_backward", op_class="norm", kernels=Kernels((0, 1, 2, 3, 4), (0, 1, 2, 3))),  # (gradient, input, mean, ...)
    Row("native_layer_norm", "t* n*^, n*^, n*^, n*^ -> t* n*^, t* n*^, t* n*^", op_class="norm.layer", opaque=(1, 2)),
    Row(
        "native_layer_norm_backward",
        "t*+ n*^, t*+ n*^, n*^, t*+ n*^, t*+ n*^, n*^, n*^ -> t* n*^, n*^, n*^",
        op_class="norm.layer",
        kernels=Kernels((0, 1, 3, 4, 5), (0, 1, 3, 4)),
        statistics=(3, 4),
    ),
    Row("_fused_rms_norm", "t* n*^, n*^, n*^ -> t* n*^, t* n*^", op_class="norm.layer", opaque=(1,)),
    Row(
        "_fused_rms_norm_backward",
        "t*+ n*^, t*+ n*^, n*^, t*+ n*^, n*^ -> t* n*^, n*^",
        op_class="norm.layer",
        kernels=Kernels((0, 1, 3, 4), (0, 1, 3)),
        statistics=(3,),
    ),
    Row("_weight_norm_interface", opaque=(1,)),  # norms
    # --- softmax and losses
    Row("_softmax _log_softmax", "..., ^ -> ...", op_class="norm.softmax"),
    Row("_softmax_backward_data _log_softmax_backward_data", "..., ..., ^ -> ...", op_class="norm.softmax"),
    Row("_safe_softmax", op_class="norm.softmax"),
    Row("cross_entropy", "n c^, n -> n, n", op_class="norm.softmax", holds="labels < logits[1]"),
    Row("cross_entropy_backward", "n, n, n c^, n, n -> n c^", op_class="norm.softmax", holds="labels < logits[1]"),
    Row("nll_loss_forward", op_class="reduction", looks_up=0, holds="target < self[1]"),
    Row("nll_loss2d_forward", looks_up=0, holds="target < self[1]"),
    # of a loss that is one number
    Row("nll_loss_backward", "1, n c^, n, c^, ?, ?, 1 -> n c^", op_class="gather", looks_up=1, holds="target < self[1]"),
    Row("nll_loss2d_backward", looks_up=1, holds="target < self[1]"),
    Row("log_sigmoid_forward", opaque=(1,)),  # buffer
    Row("_ctc_loss", opaque=(1,)),  # log alpha
    # --- pooling
    Row("max_pool2d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d", op_class="pool"),
    Row(
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward upsample_nearest2d_backward upsample_bilinear2d_backward",
        op_class="pool.backward",
    ),
    Row("max_pool2d_with_indices_backward", op_class="pool.backward", holds="indices < self[-2:]"),
    Row("adaptive_max_pool2d_backward fractional_max_pool2d_backward max_unpool2d", holds="indices < self[-2:]"),
    Row(
        "max_pool3d_with_indices_backward adaptive_max_pool3d_backward fractional_max_pool3d_backward max_unpool3d",
        holds="indices < self[-3:]",
    ),
    # --- reductions
    Row("sum", "t*, + -> t*", op_class="reduction", linear=True),
    Row("mean amax amin max argmax var var_mean linalg_vector_norm norm", op_class="reduction"),
    # --- tables and indices; the gradient of an embedding may be divided by how often each token occurs in the batch
    Row("embedding", "r^ d, i*, ?, ?i* -> i* d", op_class="gather", looks_up=0, holds="indices < weight[0]"),
    Row("embedding_renorm embedding_renorm_", holds="indices < self[0]"),
    Row("embedding_dense_backward", "i*+ d, i*+, ?, ?, ?i* -> r^ d", op_class="gather", holds="indices < num_weights"),
    # bag of each index, sizes of bags, largest indices
    Row("_embedding_bag", op_class="gather", opaque=(1, 2, 3), holds="indices < weight[0], sorted offsets < indices"),
    Row(
        "_embedding_bag_backward",
        op_class="gather",
        holds="indices < num_weights, maximum_indices < num_weights, sorted offsets < indices, sorted offset2bag < grad[0]",
    ),
    Row("index _unsafe_index", op_class="gather", looks_up=0, holds="indexed"),
    Row("index_put index_put_ _index_put_impl_ _unsafe_index_put", op_class="gather", holds="indexed"),
    Row("gather index_select", op_class="gather", looks_up=0, holds="index < self[dim]"),
    Row(
        "index_add index_add_ index_copy scatter scatter_ scatter_add scatter_add_ scatter_reduce",
        op_class="gather",
        holds="index < self[dim]",
    ),
    Row("_index_put_impl", holds="indexed"),
    Row("index_copy_ index_fill index_fill_ index_reduce index_reduce_ scatter_reduce_", holds="index < self[dim]"),
    Row("take put put_", holds="index < self"),
    Row("_jagged_to_padded_dense_forward", holds="ends offsets = values[0]"),
    Row("_padded_dense_to_jagged_forward", holds="ends offsets = total_L"),
    Row("nonzero", holds="sum self = result[0]"),
    Row("repeat_interleave", holds="sum repeats = result[0]"),
    Row("masked_select masked_scatter masked_scatter_", holds="masked"),
    Row("expect", holds="sum value = expected"),
    # --- random numbers
    Row("native_dropout", EACH, op_class="random", opaque=(1,), draws=True),  # the mask
    Row("bernoulli bernoulli_", op_class="random", draws=True),
    Row(
        "cauchy cauchy_ exponential exponential_ geometric geometric_ log_normal log_normal_ normal normal_ random random_ uniform "
        "uniform_ rand rand_like randint randint_like randn randn_like randperm "
        "_sample_dirichlet _standard_gamma binomial multinomial poisson rrelu_with_noise rrelu_with_noise_",
        draws=True,
    ),
    # --- element by element
    Row("clone _to_copy add sub neg", EACH, linear=True),
    Row("add_ mul mul_ div div_ exp pow rsqrt sqrt reciprocal cos sin where masked_fill copy_ lerp logaddexp", EACH),
    Row("sigmoid sigmoid_ tanh tanh_ silu silu_ gelu gelu_ leaky_relu elu", EACH),
    Row(
        "threshold_backward sigmoid_backward tanh_backward silu_backward gelu_backward hardtanh_backward leaky_relu_backward "
        "elu_backward native_dropout_backward",
        EACH,
    ),
    Row("relu relu_ hardtanh", EACH, rectifies=True),
    Row("hardtanh_", rectifies=True),
    # --- layouts: along the dimension of the concatenation, each input becomes blocks of the result
    Row("cat", "[t*], ? -> t*"),
    Row("slice_backward", "..., ?, ^ -> ...", linear=True),
    # --- collectives of another group, whose parts lie along the first dimension
    Row("all_gather", "t* -> t*"),
    Row("reduce_scatter", "p^ t* -> p^ t*"),
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
