"""One page of what several commands wrote: it stands alone, and hostile or damaged input stays text or is refused."""

import gzip
import json

import pytest

from tests.support.hostile import HOST, NAME
from tests.support.html_pages import figures_of_page, written_words
from tests.support.page_samples import prediction, result, two_lanes, validation
from tests.support.sample_trainings import training
from tests.support.search_samples import search_result
from traces.documents.comparison import Comparison
from traces.documents.replay_result import Diff
from traces.errors import UnusableFileError
from ui.commands.reporting import DOCUMENTS, sections_of
from ui.present import diffs_page as diff_report
from ui.present import trainings_page as training_report
from ui.present.page import page
from ui.present.report import write_report


def difference(name="before"):
    return Diff(compared="timelines", a=name, b="after", a_step_s=0.1, b_step_s=0.1, difference_s=0.0, terms=(), remainder_s=0.0, steps=1,
                aligned_share=1.0)  # fmt: skip


def write_everything(folder, name="turbodl"):
    """One result of every kind, with `name` wherever a name can be. Returns their places."""
    row = result(name)
    write_report(folder / "job", [validation(row)], [Comparison(two_lanes(), two_lanes("measured"), row)])
    diff_report.write(folder / "diff", difference(name), {}, [two_lanes(), two_lanes("measured")])
    training_report.write(folder / "training", training(5, name, "autograd"))
    files = {
        "search.json": search_result(model=name).save,
        "prediction.json": prediction(options={"alpha": name}).save,
        "predictions.json.gz": lambda place: write_predictions(place, name),
        "timeline.json.gz": two_lanes().save,
    }
    for file, save in files.items():
        save(folder / file)
    return [folder / "job", folder / "diff", folder / "training", *(folder / file for file in files)]


def write_predictions(place, name):
    placed = {"model": name, "batch": 32, "machine": "h100"}
    document = {"schema": "schedcast.predictions/1", "predictions": [prediction().model_dump(mode="json") | placed],
                "refused": [placed | {"strategy": name, "why": name}]}  # fmt: skip
    place.write_bytes(gzip.compress(json.dumps(document).encode()))


def test_one_page_of_everything_stands_alone(tmp_path):
    places = write_everything(tmp_path)
    sections = [section for place in places for section in sections_of(place)]
    assert len(sections) == len(places)
    text = page("For a colleague", sections)
    words = written_words(text)
    assert all(f'<a href="#{number}">' in words for number in range(1, len(sections) + 1))
    assert "http" not in words
    assert 'src="' not in words
    assert text.count('id="schedcast-plotly"') == 1
    titles = [figure["layout"]["title"]["text"] for figure in figures_of_page(text)]
    assert {"Step time and peak memory of every plan", "Task time per phase", "From A to B"} <= set(titles)


def test_every_table_says_how_its_quantities_are_computed(tmp_path):
    for place in write_everything(tmp_path):
        (section,) = sections_of(place)
        assert "<table>" not in section.body or "How is this computed?" in section.body


def test_names_stay_text(tmp_path):
    text = written_words(page(NAME, [section for place in write_everything(tmp_path, NAME) for section in sections_of(place)]))
    assert f"&lt;img src=&#34;http://{HOST}/j.png&#34;&gt;" in text
    assert "<img" not in text
    assert f'"http://{HOST}' not in text


def test_a_folder_without_the_steps_of_an_earlier_difference_draws_none(tmp_path):
    diff_report.write(tmp_path, difference(), {}, [two_lanes(), two_lanes()])
    diff_report.write(tmp_path, difference(), {})
    (section,) = sections_of(tmp_path)
    assert "schedcast-payload" not in section.body


def damaged_places():
    yield "empty.json", "", "no result of Schedcast"
    yield "trace.json", '{"traceEvents": []}', "no result of Schedcast"
    yield "list.json", "[]", "no result of Schedcast"
    for schema in DOCUMENTS:
        yield f"{schema}.json", f'{{"schema": "{schema}/1"}}', "damaged"
        yield f"{schema}.json", f'{{"schema": "{schema}/99"}}', "newer"


@pytest.mark.parametrize(("name", "content", "message"), list(damaged_places()))
def test_what_is_no_result_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UnusableFileError, match=message):
        sections_of(tmp_path / name)


@pytest.mark.parametrize("place", ["nothing", "a\0b", "."])
def test_a_place_without_a_result_is_refused(tmp_path, place):
    with pytest.raises(UnusableFileError, match=r"no result at|no report at"):
        sections_of(tmp_path / place)
