"""Any plan, for properties of its JSON and text forms: names, numbers and references without meaning."""

from hypothesis import strategies as st

from simulator.plan.bodies.copy import Copy
from simulator.plan.bodies.host import Host
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.bodies.update import Update
from simulator.plan.plan import Plan
from simulator.plan.task import DTYPE_BYTES, KINDS, PHASES, Operand, Storage, Task, Value, ViewStep

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
COUNTS = st.integers(0, 5)
NUMBERS = st.floats(0, 1e15)
VIEWS = st.builds(
    ViewStep, st.sampled_from(["aten.slice.Tensor", "aten.t.default"]), st.sampled_from(["[]", "[0, 1, 2]"]), st.none() | COUNTS
)


@st.composite
def operands(draw, names=None):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    views = tuple(draw(st.lists(VIEWS, max_size=2)))
    return Operand("v" if names is None else draw(names), tuple(shape), tuple(strides), draw(st.sampled_from(sorted(DTYPE_BYTES))), views)


OPS = st.builds(
    OpCall,
    st.sampled_from(["aten.mm.default", "aten.add.Tensor", "schedcast.rnn.default"]),
    st.just('[{"$": 0}, NaN]'),
    st.just("{}"),
    st.tuples(COUNTS),
    NUMBERS,
)
STEPS = st.builds(ListedOp, OPS, st.tuples(operands()), st.tuples(operands()))
BODIES = st.one_of(
    OPS,
    st.builds(OpList, st.lists(STEPS, min_size=1, max_size=3).map(tuple), NAMES),
    st.builds(
        Update, st.sampled_from(["sgd", "adam"]), st.sampled_from(["for", "fused"]), st.tuples(NAMES), st.tuples(st.tuples(NAMES, NUMBERS))
    ),
    st.builds(Copy, NAMES, NAMES),
    st.builds(Host, NUMBERS, NAMES),
)
TASKS = st.builds(
    Task, NAMES, BODIES, NAMES, COUNTS, st.integers(-3, 3), st.tuples(operands()), st.tuples(operands()), st.just(()),
    st.lists(NAMES, max_size=2).map(tuple), st.sampled_from(PHASES), NAMES, COUNTS, COUNTS,
)  # fmt: skip
V = st.builds(
    Value,
    st.just("v"),
    st.just((4, 4, 4)),
    st.just((16, 4, 1)),
    st.just("float32"),
    NAMES,
    st.sampled_from(KINDS),
    st.just("s"),
    st.none() | operands(NAMES),
)
PLANS = st.builds(
    lambda strategy, parts, value, storage, gradient, options: Plan.of_run(
        parts,
        strategy=strategy,
        values={"v": value},
        storages={"s": storage},
        losses=("v",),
        gradients={"p": gradient},
        options=options,
        semantics=options,
    ),
    NAMES,
    st.lists(st.tuples(st.lists(TASKS, max_size=3).map(tuple), st.none() | COUNTS), min_size=1, max_size=2),
    V,
    st.builds(Storage, st.just("s"), COUNTS, NAMES),
    operands(),
    st.dictionaries(NAMES, st.none() | st.booleans() | COUNTS | NUMBERS | NAMES | st.lists(NAMES, max_size=2), max_size=2),
)
