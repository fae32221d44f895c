"""A prediction does not depend on the order in which Python iterates over sets of strings."""

from tests.support.cli_process import start

CALL = ["predict", "--model", "lenet5", "--batch", 8, "--machine", "h100", "--strategy", "backward-fusion", "--json", "--show-plan"]


def test_predictions_under_different_hash_seeds_are_the_same_bytes(tmp_path):
    clock = "import simulator.engine.simulation as s\ns.time.perf_counter = lambda: 0.0"  # the one field that is a measured time
    processes = [start(clock, *CALL, folder=tmp_path, PYTHONHASHSEED=seed) for seed in "027"]
    documents = [process.communicate(timeout=300)[0] for process in processes]
    assert documents[0].startswith("{")
    assert documents[1:] == documents[:1] * 2
