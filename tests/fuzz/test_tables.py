"""Damaged tables of measured steps and of pairs: read row by row, or refused."""

import csv
import gzip
import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.predict.judgments import Judgment
from simulator.predict.scoreboard.predicted import target_of
from simulator.predict.scoreboard.rows import read_folder
from simulator.predict.scoreboard.scores import PEER_COLUMNS, peer_scores
from tests.support.fuzzing import JUNK, damaged_bytes, damaged_text, fuzzed, mostly, sound
from tests.support.jobs import MLP
from traces.errors import SchedcastError
from ui.commands import own_pairs

#: A row of each form of table, by the names of its columns.
ROWS = (
    {
        "source": "own", "gpu": "V100-16GB", "model": "vgg16", "batch": "16", "image_or_seq": "seq32", "precision": "fp32",
        "layout": "NCHW", "optimizer": "adam:fused", "what": "fwd+bwd", "value_ms": "76.45", "note": "tier B",
    },
    {"model": "resnet18", "layout": "NHWC", "batch": "8", "image": "224", "step_ms": "50", "torch": "1.12"},
    {
        "source": "own", "arch": "GPT", "layers": "2", "d_model": "64", "heads": "4", "kv_heads": "2", "ffn": "256", "ffn_kind": "swiglu",
        "vocab": "100", "tied_embeddings": "yes", "moe": "8 experts top 2, expert ffn 64", "seq": "16", "micro_batch": "2",
        "accumulation": "2", "gpus": "8", "gpu": "h100", "tp": "2", "pp": "1", "cp": "1", "ep": "1", "vp": "", "shard": "ZeRO-1",
        "activation_checkpointing": "full", "precision": "bf16", "compile": "no", "software": "Megatron-LM", "attention": "flash",
        "optimizer": "Adam (Megatron", "step_ms": "5", "peak_reserved_gib": "3.5", "peak_allocated_gib": "3", "note": "",
    },
    {
        "model": "1B", "gpus": "16", "zero": "1", "tp": "2", "pp": "2", "step_ms": "900", "ok": "yes", "micro_batch": "2",
        "accumulation": "4", "memory_gb": "40",
    },
    {**dict.fromkeys(PEER_COLUMNS, "x"), "time_error_pct": "-3.5", "note": ""},
)  # fmt: skip
PAIR = {
    "change": "precision=amp", "before": "2", "after": "1", "unit": "ms", "model": MLP, "batch": "8", "machine": "h100",
    "precision": "fp32", "optimizer": "adam:fused", "devices": "1", "lr": "0.1", "strategy": "", "trace": "", "rule": "", "source": "",
}  # fmt: skip
CELLS = JUNK.map(str) | st.sampled_from(["x" * 140_000, "1.5", "-3", "8", "seqx", "h100", "8xh100", "this-gpu", "O2", "no", '"', "1\n2"])


@st.composite
def tables(draw, row: dict[str, str]) -> bytes:
    """A table of a sound row and of damaged ones: cells, columns, text or bytes are changed; plain or compressed."""
    columns = list(row)
    if draw(st.booleans()):
        columns.pop(draw(st.integers(0, len(columns) - 1)))
    changes = st.dictionaries(st.sampled_from(columns), CELLS, max_size=3)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows([row, row | draw(changes), row | draw(changes)])
    damage = mostly(st.just(text.getvalue()), damaged_text(text.getvalue(), (",", '"', "\r", "x" * 140_000)))
    content = draw(damage).encode("utf-8", "surrogatepass")
    content = gzip.compress(content, mtime=0) if draw(st.integers(0, 3)) == 0 else content
    return draw(mostly(st.just(content), damaged_bytes(content) if content else st.just(b"")))


def test_a_damaged_table_of_steps_is_read_or_refused(tmp_path):
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "steps.csv"

    @fuzzed(100)
    @given(st.sampled_from(ROWS).flatmap(tables))
    def check(content):
        path.write_bytes(content)
        with sound("tables, scoreboard", content):
            rows, left_out = read_folder(path.parent)
            assert all(row.published_s > 0 for row in rows)
            assert all(left.why for left in left_out)
            for row in rows:
                with suppress(SchedcastError):
                    target_of(row)
            peer_scores(path.parent)

    check()


@pytest.fixture
def unjudged(monkeypatch):
    """Pairs are read and not predicted, which takes most of the time."""
    monkeypatch.setattr(own_pairs, "judged", lambda pair: Judgment(pair.rule, pair.label, pair.source, pair.gain, 1.0, (0.5, 2.0)))


def test_a_damaged_table_of_pairs_is_read_or_refused(tmp_path, unjudged):
    path = tmp_path / "pairs.csv"

    @fuzzed(60)
    @given(tables(PAIR))
    def check(content):
        path.write_bytes(content)
        with sound("tables, rules", content):
            own_pairs.judgments(path)

    check()
