"""The error of costs that were not measured: `python -m tools.cost_fit PROFILE.json [--write]`.

Excludes each model of a profile in turn, predicts its keys from those of the others, and prints the root mean square of
log(measured / predicted) by op class and by how far the keys lie beyond those fitted (`simulator.engine.costs.fits`), with the number
of models behind each figure. PROFILE is what `schedcast calibrate --model NAME -o PROFILE.json` measured for several models. With --write
the figures become `simulator/engine/costs/left_out.json`, which is used for profiles with only a small number of models.
"""

import json
import sys
from pathlib import Path

from calibrate.cpu.testbed import cpu_machine
from simulator.engine.costs.fits import LIMITS, SHIPPED, LeftOut, ProfileFits
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.site import Sites
from traces.documents.profile import Profile


def errors_of(profile: Profile) -> LeftOut:
    """The errors of the profile's own models."""
    machine = cpu_machine(profile)
    errors = ProfileFits(machine, Sites(machine), profile, CostModel(machine, profile).precision).left_out
    if set(errors.models) - {cost.model for cost in profile.costs.values()}:
        raise SystemExit("the profile has too few models; calibrate more of them")
    return errors


def main(path: Path, write: bool) -> None:
    """Print the table, and write it if asked."""
    profile = Profile.load(path)
    errors = errors_of(profile)
    print(f"{', '.join(errors.models)} on {profile.identity.cpu}, torch {profile.identity.torch}")
    print(f"{'class':26}{'within':>10}{'to 4x':>10}{'to 32x':>10}{'farther':>10}{'no keys':>10}")
    for name, bins in errors.bins.items():
        print(f"{name or 'all':26}" + "".join(f"{f'{each.rms:.2f} ({each.models})' if each.models else '-':>10}" for each in bins))
    if write:
        about = {
            "cpu": profile.identity.cpu, "torch": profile.identity.torch, "limits": LIMITS[:-1], "models": errors.models,
            "classes": errors.bins,
        }  # fmt: skip
        SHIPPED.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv[2:])
