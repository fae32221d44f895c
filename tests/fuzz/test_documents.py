"""Damaged documents: every command and page that reads one either uses it or refuses it."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.document_samples import documents
from tests.support.fuzzing import damaged, damaged_bytes, damaged_text, fuzzed, sound

SAMPLES = documents()


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_sample_itself_is_usable(kind, tmp_path):
    document, use = SAMPLES[kind]
    (tmp_path / "sample.json").write_text(json.dumps(document))
    use(tmp_path / "sample.json")


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_damaged_document_is_used_or_refused(kind, tmp_path):
    sample, use = SAMPLES[kind]
    path = tmp_path / "damaged.json"

    @fuzzed(40)
    @given(damaged(sample))
    def check(document):
        path.write_text(json.dumps(document))
        with sound(kind, document):
            use(path)

    check()


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_damaged_file_is_used_or_refused(kind, tmp_path):
    sample, use = SAMPLES[kind]
    text = json.dumps(sample)
    packed = gzip.compress(text.encode(), mtime=0)
    path = tmp_path / "damaged.json"
    contents = st.one_of(
        damaged_text(text).map(lambda changed: changed.encode("utf-8", "surrogatepass")),
        damaged_bytes(text.encode()),
        damaged_bytes(packed),
    )

    @fuzzed(15)
    @given(contents)
    def check(content):
        path.write_bytes(content)
        with sound(f"{kind}, as a file", content):
            use(path)

    check()
