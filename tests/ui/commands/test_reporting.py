"""`schedcast report`."""

import pytest

from tests.support.page_samples import result, validation
from tests.support.search_samples import search_result


@pytest.fixture
def written(tmp_path):
    places = tmp_path / "validation.json", tmp_path / "search.json"
    validation(result()).save(places[0])
    search_result().save(places[1])
    return places


def test_one_page_of_a_validation_and_a_search(schedcast, written, tmp_path):
    page = tmp_path / "page.html"
    done = schedcast.call("report", *written, "-o", page, "--title", "For <you>")
    assert (done.status, done.err) == (0, f"report: {page}\n")
    first, second = done.out.splitlines()
    assert first.startswith("- small-cnn, batch 64")
    assert second.startswith("- Search: resnet50, batch 32")
    assert "<h1>For &lt;you&gt;</h1>" in page.read_text()


def test_document(schedcast, written, tmp_path):
    page = tmp_path / "page.html"
    done = schedcast.call("report", *written, "-o", page, "--json")
    assert done.document["schema"] == "schedcast.page/1"
    assert done.document["page"] == str(page)
    assert done.document["bytes"] == page.stat().st_size
    assert [section["title"].partition(",")[0] for section in done.document["sections"]] == ["small-cnn", "Search: resnet50"]


def test_an_input_is_never_overwritten(schedcast, written):
    done = schedcast.call("report", *written, "-o", written[0])
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "would overwrite" in done.err


def test_what_is_no_result_leaves_no_page(schedcast, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = schedcast.call("report", tmp_path / "notes.txt", "-o", tmp_path / "page.html")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "no result of Schedcast; expected" in done.err
    assert not (tmp_path / "page.html").exists()
