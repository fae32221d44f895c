"""Damaged files, hostile addresses and any state of the widgets: every page of the app is drawn, without an exception."""

import json
import shutil
import sys

import pytest
import streamlit
from hypothesis import given
from hypothesis import strategies as st

from simulator.machine.presets import machine_names
from tests.support.app_pages import app_at
from tests.support.fuzzing import JUNK, damaged, damaged_bytes, fuzzed, mostly, sound
from tests.support.option_texts import JUMBLED, requests
from tests.support.rule_texts import RULES
from tests.support.sample_trainings import training
from tests.support.small_traces import write_trace
from traces.errors import SchedcastError
from ui.present import trainings

#: The session of a browser that shows another page: a part of the address, and what the widgets hold.
ADDRESSES = st.dictionaries(st.sampled_from(["report", "model", "embed", "a\0b", "", "x" * 300]), st.text(max_size=20), max_size=2)


class PageError(Exception):
    """A page that shows an exception. `frames` is where it came from."""

    def __init__(self, text: str, frames: list[str]):
        super().__init__(text)
        self.frames = frames


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draws the page `at` of the app, started with `arguments`, and presses its button; raises the errors that the page shows."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def page(at, arguments, state, address=None, press=True):
        monkeypatch.setattr(sys, "argv", ["app.py", *map(str, arguments)])
        app = app_at(at)
        for name, value in (address or {}).items():
            app.query_params[name] = value
        for name, value in state.items():
            app.session_state[name] = value
        app.run()
        _raise_shown(app)
        if press and app.button:
            app.button[0].click().run()
            _raise_shown(app)
        if app.error:
            raise SchedcastError(app.error[0].value)

    yield page
    streamlit.cache_data.clear()
    streamlit.cache_resource.clear()


def _raise_shown(app) -> None:
    if app.exception:
        (shown, *_) = app.exception
        raise PageError(f"{shown.message}\n" + "".join(shown.stack_trace), list(shown.stack_trace)[-3:])


@st.composite
def forms(draw) -> dict:
    """What the widgets of the page What if hold."""
    texts = draw(st.lists(requests(), min_size=1, max_size=2))
    fields = {
        "model": st.just("lenet5"), "batch": st.sampled_from([1, 8, 32]),
        "image size": st.sampled_from([None, 28, 36]), "optimizer": st.sampled_from(["sgd", "adam"]),
        "form": st.sampled_from(["for", "foreach", "fused"]), "precision": st.sampled_from(["fp32", "bf16", "tf32", "fp64", "amp"]),
        "machine": st.sampled_from(["this-cpu", *machine_names()]), "strategies": st.just([text.partition(":")[0] for text in texts]),
        "devices": st.sampled_from([None, None, 1, 2]), "times memory": st.sampled_from([1.0, 1.0, 0.5, 2, 7.3]),
        "accumulate": st.sampled_from([1, 1, 2, 3]), "layout": st.sampled_from(["nchw", "nhwc"]),
        "mode": st.sampled_from(["eager", "graph"]),
        "memory limit": st.sampled_from([None, None, 1e-3, 16]), "clip norm": st.sampled_from([None, 1.0]),
        "link": st.sampled_from(["alias", "copy", "copy:0.5"]), "partition": st.sampled_from([None, None, 1, 2]),
    }  # fmt: skip
    odd = draw(st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True))
    numbers = st.sampled_from([0, -1, 13, 10**6, 10**6 + 1, 2**31, 2**53 + 1, 1e300])
    return {name: draw(mostly(field, JUMBLED, numbers, JUNK) if name in odd else field) for name, field in fields.items()}


def test_what_if_answers_or_refuses_any_form(draw):
    @fuzzed(12)
    @given(forms(), ADDRESSES)
    def check(state, address):
        with sound("app, what if", (state, address)):
            draw("what-if", [], state, address)

    check()


@pytest.fixture(scope="module")
def kept(tmp_path_factory, report):
    """A folder with a report, a training and a trace."""
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(report, folder / "report")
    trainings.write(folder / "training", training(40, "baseline", "autograd"))
    write_trace(folder / "trace.json", steps=3)
    return folder


def test_a_page_of_damaged_files_is_drawn_or_refused(draw, kept, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(kept, folder)
    files = [folder / "report" / "report.json", folder / "training" / "run.json", folder / "trace.json"]
    files += sorted((folder / "report").rglob("measured.json.gz"))[:1]
    contents = {file: file.read_bytes() for file in files}
    samples = {file: json.loads(contents[file]) for file in files[:3]}

    def changes(file):
        sample = damaged(samples[file]).map(_encoded) if file in samples else st.nothing()
        return st.tuples(st.just(file), st.just(contents[file]) | sample | mostly(st.just(contents[file]), damaged_bytes(contents[file])))

    states = st.fixed_dictionaries(
        {},
        optional={
            "report": mostly(st.sampled_from([folder / "report", folder / "training"])),
            f"strategy 0 of {folder / 'report'}": mostly(st.sampled_from([0, 1])),
            "rules text": mostly(st.lists(RULES, max_size=2).map("\n".join)),
            "looked at": JUNK,
        },
    )

    @fuzzed(15)
    @given(st.sampled_from(files).flatmap(changes), states, ADDRESSES)
    def check(change, state, address):
        file, content = change
        file.write_bytes(content)
        traces = [f"--trace={folder / 'trace.json'}"]
        place = folder / ("training" if file.parent.name == "training" else "report")
        at = "trace" if file.name == "trace.json" else "validate"
        try:
            with sound("app, files", (change, state, address)):
                draw(at, [place, *traces], state, address)
        finally:
            file.write_bytes(contents[file])

    check()


def _encoded(document) -> bytes:
    return json.dumps(document).encode()
