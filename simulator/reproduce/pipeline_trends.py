"""The claims of the paper on pipelined training that follow from its layers, judged from captured networks."""

from collections.abc import Mapping

from simulator.reproduce.pipeline_cases import BATCH, MOST_INCREASE, Network
from simulator.reproduce.pipeline_layers import NumberedLayer
from simulator.reproduce.pipeline_memory import one_f_one_b_increase, pipedream_increase, stale_increase
from simulator.reproduce.pipeline_tables import Pipelined
from simulator.reproduce.predicting import Missing
from simulator.reproduce.verdicts import judged, span, trend, undecided
from traces.reproduction import Check

#: The paper prints whole percents.
_HALF_PERCENT = 0.005


def more_with_depth(networks: Mapping[Network, Pipelined | Missing]) -> Check:
    """Judge: deeper networks gain more. The reason has the speed-ups if both GPUs wait for every transfer."""
    known = [step for step in networks.values() if isinstance(step, Pipelined)]
    waiting = span([step.not_hidden for step in known]) if known else ""
    reason = (
        "transfers are hidden behind computation at every depth, so that the balance of the two stages alone decides; if both GPUs wait for"
        f" them, as processes that copy through the host may, it is {waiting}"
    )
    claim = "the deeper the network, the larger the speed-up: transfers take the same time, and computation more"
    return trend("gain by depth", claim, reason, "speed-up", range(len(known)), [step.speedup for step in known], sign=1)


def modest_memory(networks: Mapping[Network, tuple[NumberedLayer, ...]]) -> Check:
    """Judge: the memory of the deep ResNets increases by no more than the published percentage."""
    name, claim = "modest memory", f"the memory of ResNets with one pair of registers increases by no more than {MOST_INCREASE:.0%}"
    if not networks:
        return undecided(name, claim, "no network could be captured")
    increases = {network.name: stale_increase(layers, network.placement, BATCH) for network, layers in networks.items()}
    words = "; ".join(f"{network} {increase:.1%}" for network, increase in increases.items())
    why = "outputs that are computed in place are counted, which the paper's own network may do otherwise"
    return judged(name, claim, max(increases.values()) <= MOST_INCREASE + _HALF_PERCENT, words, increases, why)


def more_by_stashing(networks: Mapping[Network, tuple[NumberedLayer, ...]]) -> Check:
    """Judge: PipeDream needs more memory than the paper's pipeline, with its weights as it keeps them rather than as the paper charges."""
    name, claim = "weight stashing", "PipeDream's copies of weights make it need more memory than the pipeline with stale weights"
    if not networks:
        return undecided(name, claim, "no network could be captured")
    figures, words, right = {}, [], 0
    for network, layers in networks.items():
        stale, charged, kept = (
            function(layers, network.placement, BATCH) for function in (stale_increase, pipedream_increase, one_f_one_b_increase)
        )
        label = f"{network.name} {network.placed}"
        figures |= {f"{label}, stale": stale, f"{label}, charged": charged, f"{label}, kept": kept}
        words.append(f"{label} {stale:.0%} against {charged:.0%} as charged and {kept:.0%} as kept")
        right += kept > stale
    why = "on two GPUs it keeps one further version of the first stage's weights and of its activations, of which stale weights keep two"
    return judged(name, claim, right == len(networks), f"{right} of {len(networks)} networks as claimed: {'; '.join(words)}", figures, why)
