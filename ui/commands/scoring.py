"""`schedcast scoreboard`: how right predictions are on tables of measured steps."""

from collections.abc import Callable
from pathlib import Path

from calibrate.placement import Placement
from calibrate.profiles import target_for
from simulator.machine.presets import THIS_CPU, THIS_GPU, product_of
from simulator.predict.scoreboard.predicted import outcomes
from simulator.predict.scoreboard.rows import Row, read_folder, sampled
from simulator.predict.scoreboard.scores import peer_scores, scoreboard
from simulator.predict.search.workers import usual_processes, workers
from simulator.predict.target import Target
from traces.documents.profile import Profile, slug
from traces.documents.scoreboard import Scoreboard, ScoredStep
from traces.errors import SchedcastError
from traces.outputs import check_outputs
from ui.commands import job_options
from ui.commands.output import print_then_write
from ui.present import scoreboards
from ui.present.tables import console as terminal
from ui.service import jobs


def score(folder: Path, profile: Path | None, sample: int, processes: int | None, out: Path | None, as_json: bool) -> None:
    """Predict the steps of a folder's tables, and print how right the predictions are."""
    for option, number in (("--sample", sample), ("--processes", processes)):
        if number is not None and number < 1:
            raise SchedcastError(f"{option} is {number}; expected at least 1")
    check_outputs({"--out": out}, job_options.inputs("", profile))
    document = scored(folder, profile, sample, processes, as_json)

    def show() -> None:
        for part in scoreboards.terminal(document):
            terminal().print(part, highlight=False, markup=False)

    print_then_write(as_json, document.document, show, None if out is None else lambda: document.save(out))


def scored(
    folder: Path,
    profile: Path | None = None,
    sample: int = 60,
    processes: int | None = None,
    quiet: bool = False,
    elsewhere: Callable[[Row], str] = lambda row: "",
) -> Scoreboard:
    """The scoreboard of a folder. What was predicted before, also before Ctrl-C, is not predicted again.

    `elsewhere`: where a row is judged, if not here.
    """
    every, refused = read_folder(folder)
    rows, beyond = sampled((row for row in every if not elsewhere(row)), sample)
    peers = peer_scores(folder)
    product = Profile.load(profile).identity.gpu if profile is not None else ""
    chosen, targets, why = [], [], [*(left.why for left in (*refused, *beyond)), *filter(None, map(elsewhere, every))]
    for row in rows:
        try:
            targets.append(_target(row, profile, product))
            chosen.append(row)
        except SchedcastError as error:
            why.append(str(error))
    steps: list[ScoredStep] = []
    with jobs.progress(f"predicting {folder}", quiet) as report, workers(processes or usual_processes(len(chosen))) as run:
        for number, outcome in enumerate(outcomes(chosen, targets, run)):
            report(number + 1, len(chosen), chosen[number].workload)
            if isinstance(outcome, str):
                why.append(outcome)
            else:
                steps.append(outcome)
    return scoreboard(steps, why, peers)


def _target(row: Row, profile: Path | None, product: str) -> Target | None:
    """This machine's costs, or those of a profile, for rows that were measured on it; None for those of the row's preset."""
    if profile is not None and slug(product_of(row.machine)) == slug(product):
        return target_for(row.job, profile, None, Placement(mode=row.mode))
    if row.machine in (THIS_CPU, THIS_GPU):
        placement = Placement("cpu" if row.machine == THIS_CPU else "cuda", mode=row.mode)
        return target_for(row.job, None, row.machine, placement)
    return None
