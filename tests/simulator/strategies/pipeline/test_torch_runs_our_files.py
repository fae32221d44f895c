"""torch's pipeline runtime in two processes: with our schedules' files it computes the gradients of the whole model."""

from simulator.strategies.pipeline import grid_csv
from tests.support.pipelines import OURS
from tests.support.processes import begin, end, require_gloo


def test_the_gradients_are_those_of_the_whole_model(tmp_path):
    require_gloo()
    paths = [tmp_path / f"{place}.csv" for place in range(len(OURS))]
    for path, order in zip(paths, OURS.values(), strict=True):
        path.write_text(grid_csv.write(order(2, 4)))
    for ended in end(begin(2, ["-m", "tests.support.pipeline_process", *map(str, paths)], tmp_path)):
        assert ended.status == 0, ended.err
        errors = [float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("error ")]  # gloo prints, too
        assert len(errors) == len(OURS)
        assert max(errors) < 1e-12
