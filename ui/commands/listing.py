"""The commands that list names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from traces import units
from traces.errors import SchedcastError, UnknownNameError
from ui.commands.output import print_json, print_then_write
from ui.present import machines as words
from ui.present.blocks import Sentences, Table
from ui.present.labels import option_value
from ui.present.terminal import console, show

if TYPE_CHECKING:
    from simulator.model.workloads.language_models import LanguageModel
    from simulator.model.workloads.registry import Workload
    from traces.documents.profile import Profile
    from traces.files import Table as OpenedTable


def models(as_json: bool, name: str | None = None) -> None:
    """List the built-in models with their published parameter counts, or what is known of the model `name`.

    Raises UnknownNameError for other names.
    """
    from simulator.model.workloads import language_models
    from simulator.model.workloads import registry as workloads

    if name is not None:
        _model(workloads.get(name), workloads.language_model(name), as_json)
        return
    built_in = [workloads.get(name) for name in workloads.names()]
    if as_json:
        print_json("models", [{"name": w.name, "parameters": w.parameters, "image_size": w.image_size, "about": w.about} for w in built_in])
        return
    table(
        ("model", "parameters", "image size or tokens", "about"),
        [(w.name, f"{w.parameters:,}", str(w.image_size), w.about) for w in built_in],
    )
    print(f"Language models of other sizes: --model {language_models.EXAMPLE}")


def _model(model: "Workload", decoder: "LanguageModel | None", as_json: bool) -> None:
    sizes = {} if decoder is None else asdict(decoder)
    if as_json:
        known = {
            "name": model.name, "parameters": model.parameters, "image_size": model.image_size, "about": model.about,
            "least_size": model.least_size, "most_size": model.most_size, "batch": model.batch, "data_set": model.data is not None,
            "sizes": sizes,
        }  # fmt: skip
        print_json("models", [known])
        return
    least = f", at least {model.least_size:,}" if model.least_size > 1 else ""
    most = f", at most {model.most_size:,}" if model.most_size is not None else ""
    print(f"{model.name}: {model.about}")
    rows = [
        ("parameters", f"{model.parameters:,}"),
        ("image size or tokens", f"{model.image_size:,} (--image-size, --seq){least}{most}"),
        ("usual batch", f"{model.batch} (--batch)"),
        ("data to train on", "a data set" if model.data is not None else "one batch, repeated"),
        *((field.replace("_", " "), str(size)) for field, size in sizes.items() if size),
    ]
    table(("figure", "value"), rows)


def strategies(as_json: bool, name: str | None = None) -> None:
    """List the strategies with the names of their options, or the options of the strategy `name`. Raises UnknownNameError for others."""
    from simulator.strategies import registry

    available = registry.every() if name is None else [registry.get(name)]
    if as_json:
        documents = [
            {
                "name": s.name,
                "about": s.about,
                "options": [{"name": n, "about": doc, "default": default} for n, doc, default in s.option_docs()],
                "also": {word: text for word, text in registry.EVERYDAY.items() if text.partition(":")[0] == s.name},
            }
            for s in available
        ]
        print_json("strategies", documents)
    elif name is None:
        rows = [(s.name, s.about, ", ".join(option for option, _, _ in s.option_docs()) or "none") for s in available]
        table(("strategy", "what it does", "options"), rows)
        table(("everyday word", "strategy"), list(registry.EVERYDAY.items()))
        print("What the options of one do: schedcast strategies NAME")
    else:
        (strategy,) = available
        print(f"{name}: {strategy.about}")
        options = [(option, option_value(default), doc) for option, doc, default in strategy.option_docs()]
        if options:
            table(("option", "default", "what it does"), options)
        else:
            print("It has no options.")


def machines(as_json: bool, chosen: str | None = None) -> None:
    """List the presets with the figures of their data sheets, and this machine with those of its profile.

    `chosen`: the name of one, whose every figure is shown with its source. Raises UnknownNameError if there is no such machine.
    """
    from calibrate.profiles import own_gpu_profile, own_profile
    from simulator.machine.presets import THIS_CPU, THIS_GPU, gpu_machine, load_machine, machine_names, rated
    from simulator.predict.target import profile_of_preset

    own = own_gpu_profile() if chosen in (None, THIS_GPU) else None
    if chosen == THIS_GPU and own is None:
        raise SchedcastError("this machine has no calibrated GPU; schedcast calibrate --device cuda measures it")
    names = machine_names() if chosen is None else [name for name in (chosen,) if name != THIS_GPU]
    machines, profiles = [], []
    for name in names:
        profile = own_profile() if name == THIS_CPU else profile_of_preset(name)
        machines.append(rated(load_machine(name, profile)))
        profiles.append(profile)
    if own is not None:
        machines.append(gpu_machine(own))
        profiles.append(own)
    calibrated = [profile.updated[:10] if profile is not None else "" for profile in profiles]
    if as_json:
        print_json(
            "machines",
            [
                {
                    "name": m.name,
                    "devices": [{"name": d.name, "sms": d.sms, "peak_flops": dict(d.peak_flops)} for d in m.devices],
                    "memory_bytes": sum(memory.size_bytes for memory in m.memories),
                    "sources": dict(m.sources),
                    "calibrated": date or None,
                    **({} if chosen is None else {"figures": _sourced(words.figures(m))}),
                }
                for m, date in zip(machines, calibrated, strict=True)
            ],
        )
        return
    if chosen is not None:
        show(console(), *words.blocks(machines[0], calibrated[0]))
        return
    rows = [
        (m.name, str(len(m.devices)), str(m.devices[0].sms), f"{m.devices[0].peak_flops['fp32'] / 1e12:.2f}",
         f"{m.memories[0].bandwidth_bytes_per_s / 1e9:.0f}", units.memory_digits(m.memories[0].size_bytes, 2**30), date)
        for m, date in zip(machines, calibrated, strict=True)
    ]  # fmt: skip
    table(("machine", "devices", "SMs (cores)", "fp32 TFLOP/s", "GB/s", "GiB", "calibrated"), rows)


def _sourced(known: Mapping[str, tuple[float, str]]) -> list[dict[str, object]]:
    return [{"figure": field, "value": value, "source": source} for field, (value, source) in known.items()]


def rules(as_json: bool, pairs: Mapping[Path, "OpenedTable | None"] = MappingProxyType({}), out: Path | None = None) -> None:
    """List the what-if rules with their records on what others measured, and what is not predicted; or judge a user's own `pairs`.

    `pairs`: files, and their tables where these were read already.
    """
    from ui.commands import own_pairs
    from ui.present import rules as words

    made = [judgment for path, opened in pairs.items() for judgment in own_pairs.judgments(path, opened)]
    document = own_pairs.records(made) if pairs else words.documented()

    def say() -> None:
        title, about = (
            (f"What-if rules compared with {', '.join(map(str, pairs))}", words.HOW_JUDGED) if pairs else (words.TITLE, words.ABOUT)
        )
        show(console(), *words.blocks(document, title, about, made))

    print_then_write(as_json, document.document, say, None if out is None else lambda: document.save(out))


def profiles(as_json: bool, name: str | None = None) -> None:
    """List the calibration profiles in the data folder, or what one of them measured: `name` is its name there, or a file.

    Raises UnknownNameError if there is no such profile.
    """
    from traces.documents.profile import Profile
    from traces.documents.profile_files import default_folder, list_profiles
    from traces.files import kind_at

    if name is not None:
        stored = {path.name: path for path in list_profiles()}
        path = stored.get(name) or stored.get(f"{name}.json") or Path(name)
        if kind_at(path) != "file":
            raise UnknownNameError("profile", name, list(stored), "`schedcast profiles` lists them; a file may be named too")
        _profile(path, Profile.load(path), as_json)
        return
    rows: list[tuple[str, ...]] = []
    documents: list[dict[str, object]] = []
    for path in list_profiles():
        try:
            profile = Profile.load(path)
        except SchedcastError as error:
            rows.append((path.name, "unusable", str(error), ""))
            documents.append({"path": str(path), "error": str(error)})
            continue
        rows.append((path.name, profile.identity.name, f"{len(profile.costs):,}", profile.updated))
        documents.append(
            {"path": str(path), "machine": profile.identity.name, "keys": len(profile.costs), "failures": len(profile.failures),
             "updated": profile.updated}
        )  # fmt: skip
    if as_json:
        print_json("profiles", documents)
    elif rows:
        table(("profile", "machine", "costs", "updated"), rows)
    else:
        print(f"no profile in {default_folder()}; schedcast calibrate makes one")


def _profile(path: Path, profile: "Profile", as_json: bool) -> None:
    """Print what a profile has measured: ops, transfers and the optimizers' updates."""
    from calibrate.identity import comparable_cpu
    from simulator.engine.costs.op_points import key_points

    if as_json:
        document = {
            "path": str(path), "machine": profile.identity.name, "keys": len(profile.costs), "failures": len(profile.failures),
            "updated": profile.updated, **profile.model_dump(mode="json", include={"costs", "transfers", "collectives"}),
        }  # fmt: skip
        print_json("profiles", [document])
        return
    warnings = words.warnings(profile, comparable_cpu() if profile.identity.kind == "cpu" else None)
    about = [Sentences([words.age_words(profile)], mark=""), Sentences(warnings)]
    show(console(), *about, *words.profile_blocks(profile, key_points(profile)), details=False)


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table of texts."""
    cells = [dict(zip(columns, row, strict=True)) for row in rows]
    show(console(), Table(cells, columns))
