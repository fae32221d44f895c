"""Damaged report folders, and profiles, traces and reports at places that are none."""

import json
import shutil

from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiles import open_profile
from simulator.replay.whatif.replayed import replayed
from tests.support.fuzzing import damaged, damaged_bytes, fuzzed, sound
from traces.documents.profile import Profile
from traces.documents.timeline import Timeline
from ui.commands.reporting import sections_of
from ui.present.page import page
from ui.present.report import read_report


def test_a_damaged_report_is_read_or_refused(report, tmp_path):
    sample = json.loads((report / "report.json").read_text())
    folder = tmp_path / "report"
    shutil.copytree(report, folder)

    @fuzzed(60)
    @given(damaged(sample))
    def check(document):
        (folder / "report.json").write_text(json.dumps(document))
        with sound("report folder", document):
            read_report(folder)

    check()


def test_a_report_of_damaged_files_is_read_or_refused(report, tmp_path):
    folder = tmp_path / "report"
    shutil.copytree(report, folder)
    files = sorted(path for path in folder.rglob("*.json*") if path.name not in ("perfetto.json.gz", "plan.json.gz"))
    contents = {path: path.read_bytes() for path in files}

    @fuzzed(20)
    @given(st.sampled_from(files).flatmap(lambda path: st.tuples(st.just(path), damaged_bytes(contents[path]))))
    def check(change):
        path, content = change
        path.write_bytes(content)
        try:
            with sound("files of a report", change):
                page("report", sections_of(folder))
        finally:
            path.write_bytes(contents[path])

    check()


PLACES = st.sampled_from(
    ["", ".", "/", "/dev/zero", "/dev/null", "a\0b", "\udcff", "x" * 300, "x/" * 3000, "//", "~", "nothing.json", "/proc/self/mem"]
)


@fuzzed(30)
@given(PLACES, st.sampled_from([Profile.load, Timeline.load, read_report, sections_of, open_profile, lambda place: replayed([place])]))
def test_a_place_without_a_file_is_refused(place, read):
    from pathlib import Path

    with sound("places", (place, read)):
        read(Path(place))
