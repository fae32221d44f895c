"""Predicted gains of rules next to what others measured, over pairs of steps with one change.

    python -m tools.pairs [--write] [--rows] [RULE...]

`--write` puts the records into `simulator/predict/rule_records.json`, which `schedcast judge` shows. Run it after any change of costs, of
machines or of the engine; two processes take some minutes. `--rows` also prints every pair. With names of rules, only these are judged and
printed, and nothing is written. Then no intervals are scored: they would follow from the pairs of the other rules (`judgments`).
"""

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from simulator.predict.forecast import Forecast
from simulator.predict.judgments import Judgment, by_rule, record, scored
from simulator.predict.pairs import Pair, Side, judged, predicted_side
from simulator.predict.rule_records import DATA, text
from simulator.replay.whatif.loader import with_workers
from simulator.replay.whatif.ranking import RERUN, Before, changed_step_s
from tests.support.loader_traces import OF_PAIR
from tests.support.shared_data import shared_folder
from tests.support.small_replays import load_replay
from tools.pair_tables import MODELS, PAIRS, every_pair, of_traces
from traces.documents.rule_records import LeftOutPairs, RuleRecord, RuleRecords
from ui.present.rules import judgment_words

#: Why a rule was wrong where it was, by rule.
MISSES = {
    "amp": "Where host and GPU take nearly as long, a small error of either decides the sign (GPT-2 large and xl at 256 tokens)."
    " GPT-2's vocabulary of 50,257 tokens divides by no power of two, for which tensor cores have slower products; presets do not know"
    " that. The 3-D convolutions of the U-Net are priced like 2-D ones; its source has 1.38x without a loader.",
    "batch": "Torch7 launches small batches faster than PyTorch, whose host the presets have. BERT and GPT-2 were measured to gain more"
    " than their kernels explain, in one source 1.47x from batch 16 to 28. One run of nanotron took longer with half of the samples.",
    "cuda-graph": "What is left at batches 1 and 4 are kernels, which are predicted longer than measured (16.7 and 23.8 ms a step).",
    "gradient buckets": "Once gradients are reduced beside backward, the rest of the step takes 130 to 220 ms longer by the source's"
    " waiting times (365 to 529 ms at 128 tokens), and gradients are copied into buckets and back, 32 GB. A plan has neither.",
    "layout": "Convolutions in groups, and depthwise ones, have one row for both orders (ResNeXt, MNASNet).",
    "optimizer": "step() alone: the fused kernels are predicted to take 204 us, and 351 were measured. The optimizer's Python explains"
    " little of it: 65 us for ten parameters on a CPU whose for-loop form takes less than half of that host's. The U-Net waits for its"
    " loader after the change.",
    "scale out": "ResNet-50 on 8 GPUs was measured 9 % longer a step than on 4, which communication within a node does not explain."
    " Twice the GPUs train language models with FSDP 1.87x to 1.97x as fast, and are predicted to do so 1.99x.",
    "sharded optimizer": "nanotron without it is predicted too fast on 64 GPUs and more, and one of its runs was on a sick node. The two"
    " A100 sum all gradients and then broadcast each parameter, where fsdp sums and gathers shards.",
    "tf32": "The 3-D convolutions of the U-Net are priced like 2-D ones. GPT-2's vocabulary is as with amp.",
    "turbodl": "Over Caffe on a P100. Kernels of large batches fill the predicted GPU; docs/papers.md has every claim with the cause.",
}
#: A hash of the code of the models that are not built in.
CODE = hashlib.blake2b(Path(MODELS).read_bytes(), digest_size=12).hexdigest()
HEAD = "| rule | judged by | pairs | sign right | median error | worst | in the interval |\n" + "|---" * 7 + "|"


class Predicted:
    """The forecasts of sides, and the graphs of their jobs, so that none is made twice."""

    def __init__(self):
        self._forecasts: dict[Side, Forecast] = {}
        self._graphs: dict[tuple, dict] = defaultdict(dict)

    def __call__(self, side: Side) -> Forecast:
        """The forecast of a side."""
        key = side if isinstance(side.machine, str) else replace(side, machine=side.machine.name)
        if key not in self._forecasts:
            job = side.job
            if job.model.startswith(MODELS):  # our own file: its graphs may be stored like those of built-in models
                job.__dict__["factory"] = replace(job.factory, fingerprint=CODE, repeats=False)
            graphs = self._graphs[job.model, job.image_size, job.layout, job.dtype, job.autocast_dtype, job.checkpoint]
            job._graphs.update(graphs)
            self._forecasts[key] = predicted_side(side)
            graphs.update(job._graphs)
        return self._forecasts[key]


def judge(pairs: Sequence[Pair]) -> list[Judgment]:
    """Judge pairs that may share sides."""
    predict = Predicted()
    return [judged(pair, predict) for pair in pairs]


def judgments(pairs: Iterable[Pair], processes: int = 2) -> Iterator[Judgment]:
    """Judge pairs, those of a model and batch together."""
    groups: dict[tuple, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.before.job.model, pair.before.job.batch].append(pair)
    with ProcessPoolExecutor(processes) as pool:
        for group in pool.map(judge, groups.values()):
            yield from group


def loader_judgments(folder: Path) -> Iterator[Judgment]:
    """The pairs with traces: four workers instead of none, with what workers cost in the other pair."""
    for name, gain in of_traces(folder / PAIRS).items():
        costs = OF_PAIR["c" if name.endswith("_b") else "b"]
        replay = load_replay(folder / "kineto" / f"{name}.json.gz")
        before = Before(replay, changed_step_s(replay))
        usual, least, most = (before.step_after_s(with_workers(replay, 4, costs.times(factor))) for factor in (1, 0, 2))
        interval = (before.step_s / ((1 + RERUN) * most), before.step_s / ((1 - RERUN) * least))
        yield Judgment("loader", f"{name}: loader workers=4", "pytorch/kineto", gain, before.step_s / usual, interval, way="trace")


def records(folder: Path, rules: Iterable[str] = ()) -> tuple[list[Judgment], RuleRecords]:
    """The judgments of all pairs of the folder, and their records; or those of some rules' pairs on presets, without intervals."""
    pairs, left_out = every_pair(folder)
    if wanted := set(rules):
        left_out = []
        made = [replace(each, interval=None) for each in judgments(pair for pair in pairs if pair.rule in wanted)]
    else:
        made = scored([*loader_judgments(folder), *judgments(pairs)])
    return made, RuleRecords(
        records=tuple(record(rule, own, MISSES.get(rule, "")) for (rule, _), own in by_rule(made).items()),
        left_out=tuple(LeftOutPairs(rule=rule, pairs=count, reason=why) for (rule, why), count in sorted(Counter(left_out).items())),
    )


def row(each: RuleRecord) -> str:
    """A line of the table of rules."""
    share = f"{each.covered} of {each.intervals}" if each.intervals else ""
    return (
        f"| {each.rule} | {each.way} | {each.pairs} | {each.sign_right} | {100 * each.median_error:.0f} points |"
        f" {100 * each.worst_error:+.0f} | {share} |"
    )


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    folder = shared_folder("")
    if folder is None:
        sys.exit("no public measurements next to the repository; set SCHEDCAST_SHARED")
    rules = [each for each in arguments if not each.startswith("--")]
    made, document = records(folder, rules)
    if rules or "--rows" in arguments:
        print(*(f"{each.rule}: {judgment_words(each)}" for each in made), sep="\n")
    print(HEAD, *map(row, document.records), sep="\n")
    for each in document.left_out:
        print(f"not predicted: {each.pairs} of {each.rule}: {each.reason}")
    if "--write" in arguments and not rules:
        DATA.write_text(text(document))


if __name__ == "__main__":
    main(sys.argv[1:])
