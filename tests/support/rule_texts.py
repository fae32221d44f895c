"""Hypothesis strategies for what-if rules, as texts: those that can be applied, and anything else."""

from hypothesis import strategies as st

from simulator.replay.whatif import registry as whatif
from tests.support.fuzzing import damaged_text, mostly

PIECES = (
    "kernel:", "host", "loader", "workers", "remove:", "optimizer=", "backward-fusion", "network", "cuda-graph", "priority:", "*=", "=",
    "/gemm/", "gemm", "wgrad", "nccl", "2x", "faster", "slower", " ", "0.5", "0", "-1", "inf", "nan", "1e-300", "1e300", "1e999", "9" * 400,
    "fused", "foreach", "for", "(", ")", "[", "(a+)+$", ".*", "\\", "\0", "\ud800", "é", "\n", "%", "x" * 400,
)  # fmt: skip
FORMS = st.sampled_from([rule.form for rule in whatif.rules()])
KERNELS = st.lists(st.sampled_from(["gemm", "wgrad", "nccl", "Reduce", ".", "_[0-9]", "^ncclDev"]), min_size=1, max_size=3).map("|".join)
FACTORS = st.floats(1e-3, 1e3).map("{:.3g}x".format)
USABLE = st.one_of(
    st.tuples(
        KERNELS.map("kernel:/{}/".format) | st.sampled_from(["host", "network", "loader"]), FACTORS, st.sampled_from(["faster", "slower"])
    ).map(" ".join),
    KERNELS.map("remove:/{}/".format),
    st.integers(1, 64).map("loader workers={}".format),
    st.tuples(KERNELS, st.integers(-5, 5)).map("priority:/{0[0]}/={0[1]}".format),
    st.sampled_from([
        "optimizer=foreach", "optimizer=fused", "optimizer=free", "backward-fusion", "backward-fusion=1", "cuda-graph", "host free",
        "loader free",
    ]),
)  # fmt: skip
RULES = mostly(
    USABLE,
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join),
    FORMS.flatmap(lambda form: damaged_text(form, PIECES)),
)
