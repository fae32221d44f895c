"""The section of a page about a recorded run: what it waits for, the median step drawn, and what changes would gain."""

from traces.documents.replay_result import ReplayResult
from ui.present import replays, rooflines
from ui.present.page import Section, document_data, section
from ui.present.timeline_canvas.page import timelines_html


def replay_section(result: ReplayResult) -> Section:
    """Headline, sentences, the timeline of the median step, and the tables that `schedcast replay --details` prints."""
    asked = [] if result.what_if is None else [*replays.what_if_words(result.what_if), *replays.assumption_words(result.what_if)]
    words = [
        *replays.wait_words(result, result.median_step), *replays.ladder_words(result), *asked, *replays.slow_words(result),
        *replays.words(result.stragglers, result.gpu_period_simulated_s), *replays.replay_words(result),
        *rooflines.words(result.roofline), *rooflines.memory_words(result.memory),
    ]  # fmt: skip
    name = replays.step_name(result, result.median_step)
    return section(
        "Replay of a recorded run", replays.headline(result), "replay.html", words=words, tables=replays.tables(result),
        details=[*replays.detail_tables(result), ("Kernels that the replay places worst", replays.misplaced_cells(result))],
        timeline="" if result.timeline is None else timelines_html([result.timeline], f"{name[:1].upper()}{name[1:]}, as recorded"),
        text_columns=replays.WORDS | {"kernel", "why"}, data=document_data(result.model_copy(update={"timeline": None})),
    )  # fmt: skip
