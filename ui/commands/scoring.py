"""`schedcast judge`: how accurate predictions are on tables of measured steps, and what-if rules on tables of pairs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from calibrate.placement import Placement
from calibrate.profiles import target_for
from simulator.machine.presets import THIS_CPU, THIS_GPU, product_of
from simulator.predict.scoreboard.predicted import outcomes
from simulator.predict.scoreboard.rows import REQUIRED, LeftOut, Row, read, read_folder, sampled
from simulator.predict.scoreboard.scores import peer_scores, scoreboard
from simulator.predict.search.workers import usual_processes, workers
from simulator.predict.target import Target
from traces.documents.profile import Profile, slug
from traces.documents.scoreboard import Scoreboard, ScoredStep
from traces.errors import Code, SchedcastError
from traces.files import Table, kind_at, read_table
from traces.outputs import check_outputs, is_special
from ui.commands import listing
from ui.commands.output import print_then_write
from ui.commands.own_pairs import NEEDED, is_table
from ui.present import scoreboards
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.request import JobRequest, machine_named
from ui.service.progress import progress_bar

#: Steps of a large table that are predicted.
SAMPLE = 60


def judge(
    tables: Sequence[Path], *, profile: Path | None, sample: int | None, processes: int | None, out: Path | None, as_json: bool
) -> None:
    """Print how accurate predictions are on tables of steps, or what-if rules on tables of pairs; without any, the records of the rules."""
    check_outputs({"--out": out}, [("TABLE", table) for table in tables])
    if special := [table for table in tables if is_special(table)]:
        raise SchedcastError(f"{special[0]} is a device or a pipe; expected a file or a folder of tables")
    opened = {table: read_table(table, "table") for table in tables if kind_at(table) != "folder"}
    pairs = [table for table, own in opened.items() if is_table(own.columns)]
    if tables and not pairs:
        score(tables, profile=profile, sample=sample, processes=processes, out=out, as_json=as_json, opened=opened)
        return
    if steps := [table for table in tables if table not in pairs]:
        raise SchedcastError(f"{pairs[0]} has pairs, and {steps[0]} has steps; judge one after the other")
    for option, value in (("--profile", profile), ("--sample", sample), ("--processes", processes)):
        if value is not None:
            raise SchedcastError(f"{option} {value} is for tables of measured steps; drop it")
    listing.rules(as_json, {path: opened[path] for path in pairs}, out)


def score(
    tables: Sequence[Path],
    *,
    profile: Path | None,
    sample: int | None,
    processes: int | None,
    out: Path | None,
    as_json: bool,
    opened: Mapping[Path, Table] = MappingProxyType({}),
) -> None:
    """Predict the steps of tables, or of folders of tables, and print how accurate the predictions are. `opened`: those already read."""
    for option, number in (("--sample", sample), ("--processes", processes)):
        if number is not None and number < 1:
            raise SchedcastError(f"{option} is {number}; expected at least 1")
    check_outputs({"--out": out}, JobRequest("", machine=machine_named(None, profile)).inputs)
    document = scored(tables, profile, SAMPLE if sample is None else sample, processes, as_json, opened=opened)

    def say() -> None:
        show(terminal(), *scoreboards.blocks(document))

    print_then_write(as_json, document.document, say, None if out is None else lambda: document.save(out))


def scored(
    tables: Sequence[Path],
    profile: Path | None = None,
    sample: int = SAMPLE,
    processes: int | None = None,
    quiet: bool = False,
    elsewhere: Callable[[Row], str] = lambda row: "",
    opened: Mapping[Path, Table] = MappingProxyType({}),
) -> Scoreboard:
    """The scoreboard of tables, or of folders of tables. What was predicted before, also before Ctrl-C, is not predicted again.

    `elsewhere`: where a row is judged, if not here. `opened`: tables already read.
    """
    rows, peers, why = [], [], []
    for table in tables:
        every, refused = _rows(table, opened.get(table))
        own, beyond = sampled((row for row in every if not elsewhere(row)), sample)
        rows += own
        peers += peer_scores(table)
        why += [*(left.why for left in (*refused, *beyond)), *filter(None, map(elsewhere, every))]
    product = Profile.load(profile).identity.gpu if profile is not None else ""
    chosen, targets = [], []
    for row in rows:
        try:
            targets.append(_target(row, profile, product))
            chosen.append(row)
        except SchedcastError as error:
            why.append(str(error))
    steps: list[ScoredStep] = []
    with (
        progress_bar(f"predicting {', '.join(map(str, tables))}", quiet) as report,
        workers(processes or usual_processes(len(chosen))) as run,
    ):
        for number, outcome in enumerate(outcomes(chosen, targets, run)):
            report(number + 1, len(chosen), chosen[number].workload)
            if isinstance(outcome, str):
                why.append(outcome)
            else:
                steps.append(outcome)
    return scoreboard(steps, why, peers)


def _rows(table: Path, opened: Table | None) -> tuple[list[Row], list[LeftOut]]:
    """The rows of a table or of a folder of tables, and the skipped ones. Raises SchedcastError if there are none."""
    if kind_at(table) != "file":
        return read_folder(table)
    rows, left_out = read(table, table.name, opened)
    if not rows and not left_out:
        raise SchedcastError(
            f"{table} is no table of steps or pairs; expected the columns {', '.join(REQUIRED)} of steps, or {', '.join(NEEDED)} of pairs",
            Code.FILE,
        )
    return rows, left_out


def _target(row: Row, profile: Path | None, product: str) -> Target | None:
    """This machine's costs, or those of a profile, for rows that were measured on it; None for those of the row's preset."""
    if profile is not None and slug(product_of(row.machine)) == slug(product):
        return target_for(row.job, profile, None, Placement(mode=row.mode))
    if row.machine in (THIS_CPU, THIS_GPU):
        placement = Placement("cpu" if row.machine == THIS_CPU else "cuda", mode=row.mode)
        return target_for(row.job, None, row.machine, placement)
    return None
