"""`schedcast calibrate --from-trace`."""

import os
from pathlib import Path

from calibrate.traced.from_trace import profile_from_trace
from simulator.model.job import Job
from simulator.model.usual_batch import source_file
from traces.documents.profile import Profile
from traces.errors import SchedcastError
from traces.files import check_writable
from traces.outputs import check_outputs
from ui.commands.output import print_document
from ui.present.text.traced import summary

SCHEMA = "schedcast.traced/1"


def calibrate(job: Job, trace: Path, strategies: list[str], output: Path | None, as_json: bool) -> None:
    """Turn a trace into a profile and write it to `output`, which may have costs of the same GPU already."""
    if strategies:
        raise SchedcastError("--from-trace takes the costs of the recorded step; leave out --strategy, and give it to predict")
    if output is None:
        raise SchedcastError("--from-trace makes a profile of the GPU in the trace; say where to write it with -o FILE")
    check_outputs({"--output": output}, [("--model", source_file(job.model)), ("--from-trace", trace)])
    known = Profile.load(output) if os.path.exists(output) else None
    check_writable(output)
    traced = profile_from_trace(trace, job)
    if known is not None and (differences := known.matches(traced.profile.identity)):
        raise SchedcastError(f"profile {output} is of another machine ({'; '.join(differences)}); write to another file with -o")
    place = traced.profile.save(output)
    if as_json:
        print_document({"schema": SCHEMA, "profile": str(place), "keys": len(traced.profile.costs), **traced.document()})
        return
    for line in summary(traced):
        print(line)
    print(f"{len(traced.profile.costs)} costs of {traced.profile.identity.gpu} in {place}")
