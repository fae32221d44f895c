"""The data of the charts of a machine, and of errors by layer."""

import pytest

from simulator.engine.costs.op_points import OpPoint, Roof
from simulator.replay.diff.task_errors import GroupError
from tests.support import hostile
from traces.documents.collectives import CollectiveLaw, LawPiece
from traces.documents.profile import Identity, Profile, Transfer
from ui.present.machine_charts import fitted_lines, roofline_figure, transfers_figure
from ui.present.validations_page import errors_figure

ROOF = Roof({"fp32": 100.0, "bf16": 400.0}, 10.0)


def test_ops_lie_under_the_roofs_of_their_precisions():
    points = [
        OpPoint("mm", "matmul", "guessed", 200.0, 10.0, 2.0, phase="forward", precision="bf16"),
        OpPoint("relu", "elementwise", "guessed", 10.0, 10.0, 2.0, 4, phase="backward"),
        OpPoint("view", "elementwise", "guessed", 0.0, 10.0, 2.0, phase="forward"),
    ]
    figure = roofline_figure(points, ROOF, [OpPoint("key", "matmul", "measured", 1.0, 1.0, 1.0)])
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name) == ["measured costs of the profile", "forward", "backward", "roof, fp32", "roof, bf16"]
    assert (list(by_name["forward"].x), list(by_name["forward"].y)) == ([20.0], [100.0])  # what does no FLOPs has no place
    assert by_name["backward"].marker.size[0] > by_name["forward"].marker.size[0]
    assert max(by_name["roof, fp32"].y) == 100
    assert max(by_name["roof, bf16"].y) == 400
    assert 10.0 in by_name["roof, fp32"].x  # the corner


def test_laws_beside_the_points_that_they_were_fitted_on():
    law = CollectiveLaw(pieces=[LawPiece(100.0, 1.0, 0.1), LawPiece(1000.0, 5.0, 0.0)], points=[(50.0, 6.1), (500.0, 4.9)])
    transfers = {
        "cuda:0>host": Transfer(latency_s=0.5, bytes_per_s=2.0, points=[(10.0, 5.4)]),
        "host>cuda:0": Transfer(latency_s=1.0, bytes_per_s=2.0),
    }
    profile = Profile(identity=Identity(kind="gpu"), transfers=transfers, collectives={"all-reduce|nccl|2": law})
    first, second, third = fitted_lines(profile)
    assert (first.points, first.law) == (((10.0, 5.4),), ((10.0, 5.5),))
    assert second.points == ()
    assert second.law[0][0] == 1024
    assert third.law == ((50.0, 6.0), (500.0, 5.0))
    assert [trace.mode for trace in transfers_figure(profile).data] == ["markers", "lines", "lines", "markers", "lines"]


def test_errors_are_red_where_tasks_took_longer():
    groups = [GroupError("conv1", 2, 0.010, 0.014), GroupError("fc", 1, 0.010, 0.008)]
    (bars,) = errors_figure(groups, "layer").data
    assert list(bars.x) == pytest.approx([4.0, -2.0])
    assert bars.marker.color[0] != bars.marker.color[1]


def test_no_name_becomes_a_part_of_the_charts():
    point = OpPoint(hostile.NAME, hostile.NAME, "measured", 1.0, 1.0, 1.0, phase=hostile.NAME)
    profile = Profile(identity=Identity(kind="gpu"), transfers={hostile.NAME: Transfer(latency_s=0.5, bytes_per_s=2.0)})
    for figure in (roofline_figure([point], ROOF), transfers_figure(profile), errors_figure([GroupError(hostile.NAME, 1, 1.0, 2.0)], "op")):
        text = figure.to_json().replace("\\u003c", "<")
        assert [tag for tag in ("<a ", "<img", "$$", "$x$") if tag in text] == []
