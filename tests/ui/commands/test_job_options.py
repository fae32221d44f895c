"""The options that commands with a job share."""

import typer
from typer.testing import CliRunner

from calibrate.placement import Placement
from simulator.model.job import Job
from ui.cli import app
from ui.commands.job_options import takes_job


def test_a_command_receives_a_job_and_a_placement():
    received = []
    command = typer.Typer()

    @command.command()
    @takes_job()
    def name(job, placement, settings, steps: int = 3):
        received.append((job, placement, settings, steps))

    options = [
        "--model",
        "lenet5",
        "--batch",
        "8",
        "--optimizer",
        "adam:fused",
        "--accumulate",
        "2",
        "--devices",
        "2",
        "--memory-limit",
        "4",
    ]
    done = CliRunner().invoke(command, [*options, "--set", "a=1", "--set", "b=2", "--steps", "5"])
    assert done.exit_code == 0, done.output
    expected = Job("lenet5", 8, optimizer="adam", form="fused", accumulate=2, precision="default")
    assert received == [(expected, Placement(devices=2, memory_limit_gb=4.0), ["a=1", "b=2"], 5)]
    assert "--memory-limit" in CliRunner().invoke(command, ["--help"]).output


def test_calibration_has_no_memory_limit():
    commands = typer.main.get_command(app).commands
    assert {"job", "placement"}.isdisjoint(option.name for option in commands["calibrate"].params)
    assert [any(o.name == "memory_limit" for o in commands[name].params) for name in ("calibrate", "predict", "run", "validate")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("schedcast 0.")
