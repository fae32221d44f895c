"""A small result of a search: the best plan, one tied with it, a slower one and one that does not fit."""

from traces.documents.comparison import Change
from traces.documents.search_result import PrunedPlan, RankedPlan, RefusedPlan, SearchResult, Verification, VerifiedPlan

GIB = 2**30


def ranked(plan, step_s, gib, behind_interval=None, probability=0.0, fits=True, **more):
    """A row. The best plan takes 10 ms."""
    fields = {
        "strategy": plan.partition(":")[0], "options": {}, "interval_s": (0.9 * step_s, 1.1 * step_s), "peak_bytes": int(gib * GIB),
        "peak_bytes_by_device": {"cuda:0": int(gib * GIB)}, "speedup": 0.02 / step_s, "against_pytorch": 0.018 / step_s,
        "behind": step_s / 0.01 if fits else None, "bound_s": 0.8 * step_s, "bound_by": "dependencies",
    }  # fmt: skip
    return RankedPlan(**fields | more, plan=plan, step_s=step_s, behind_interval=behind_interval, probability=probability, fits=fits)


def search_result(fits=True, **more):
    """The result; without `fits`, no plan fits."""
    misfit = ranked("gpipe", 0.009, 40.0, fits=False, why_not="needs 40 GiB, 16 GiB there, 24 GiB too much")
    plans = (
        ranked("turbodl:fuse=backward", 0.010, 3.0, probability=0.7),
        ranked("turbodl", 0.0101, 2.0, (0.995, 1.015), probability=0.3),
        ranked("turbodl:alpha=1", 0.0101, 2.0, (0.995, 1.015)),
        ranked("backward-fusion", 0.0110, 1.0, (0.9, 1.3)),
        ranked("baseline", 0.020, 3.5, (1.8, 2.2)),
    )
    usual = {
        "model": "resnet50", "batch_size": 32, "optimizer": "momentum:foreach", "precision": "fp32", "mode": "eager", "machine": "h100",
        "devices": 1, "candidates": 8, "plans": (*(plans if fits else ()), misfit), "best": plans[0].plan if fits else None,
        "pruned": (PrunedPlan(plan="forward-fusion", bound_s=0.021, bound_by="dependencies", beaten_by="backward-fusion", over=1.91),),
        "refused": (RefusedPlan(plan="bppsa", why="bppsa: no chain"), RefusedPlan(plan="bppsa:level=2", why="bppsa: no chain")),
        "bound_s": 0.008, "baseline_step_s": 0.02, "pytorch_step_s": 0.018, "rival": "backward-fusion" if fits else None,
        "waterfall": (Change(part="overlap of backward", seconds=-0.01),) if fits else (),
        "rival_waterfall": (Change(part="update", seconds=-0.001),) if fits else (),
    }  # fmt: skip
    return SearchResult(**usual | more)


def of_a_language_model():
    """Five plans of a step of a million tokens; the fourth is beaten in time and memory, and the last does not fit."""
    held = {"activations": 40 * GIB, "optimizer state": 12 * GIB, "scratch": 0}
    plans = (
        ranked("fsdp --accumulate 8 --checkpoint none", 10.0, 60.0, accumulate=8, mfu=0.46, held_bytes=held),
        ranked("fsdp --accumulate 4 --checkpoint selective", 10.5, 50.0, accumulate=4, checkpoint="selective"),
        ranked("fsdp --accumulate 8 --checkpoint selective", 11.0, 35.0, accumulate=8, checkpoint="selective"),
        ranked("fsdp:shard=1 --accumulate 8 --checkpoint selective", 11.5, 45.0, accumulate=8, checkpoint="selective"),
        ranked("fsdp --accumulate 8 --checkpoint full", 13.0, 20.0, accumulate=8, checkpoint="full"),
        ranked("fsdp --accumulate 1 --checkpoint none", 9.0, 500.0, fits=False),
    )
    return search_result(plans=plans, best=plans[0].plan, tokens=1_000_000, devices=64, rival=None)


def verification(*rows, rounds=None):
    """The verification of (plan, predicted, recalibrated, measured) in ms; without a measured step the plan was skipped.

    `rounds`: by plan, a measured step in ms of each round.
    """
    from calibrate.verification import judged

    made = [
        VerifiedPlan(
            plan=plan, status="ok" if measured else "skipped: why", predicted_step_s=predicted * 1e-3,
            recalibrated_step_s=again * 1e-3 if measured else None, measured_step_s=measured * 1e-3 if measured else None,
            max_grad_error=0.0 if measured else None,
        )
        for plan, predicted, again, measured in rows
    ]  # fmt: skip
    judgement: Verification = judged(made, 0.02, {plan: [[ms * 1e-3] for ms in steps] for plan, steps in (rounds or {}).items()})
    return judgement
