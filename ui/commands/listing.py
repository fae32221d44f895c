"""The commands that list names."""

from collections.abc import Sequence
from pathlib import Path

from traces import units
from ui.commands.output import print_json, print_then_write
from ui.present.labels import option_value
from ui.present.tables import Grid, console, print_lines


def models(as_json: bool) -> None:
    """List the built-in models with their published parameter counts."""
    from simulator.model.workloads import language_models
    from simulator.model.workloads import registry as workloads

    built_in = [workloads.get(name) for name in workloads.names()]
    if as_json:
        print_json("models", [{"name": w.name, "parameters": w.parameters, "image_size": w.image_size, "about": w.about} for w in built_in])
        return
    table(
        ("model", "parameters", "image size or tokens", "about"),
        [(w.name, f"{w.parameters:,}", str(w.image_size), w.about) for w in built_in],
    )
    print(f"Language models of other sizes: --model {language_models.EXAMPLE}")


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
            }
            for s in available
        ]
        print_json("strategies", documents)
    elif name is None:
        rows = [(s.name, s.about, ", ".join(option for option, _, _ in s.option_docs()) or "none") for s in available]
        table(("strategy", "what it does", "options"), rows)
        print("What the options of one do: schedcast strategies NAME")
    else:
        (strategy,) = available
        print(f"{name}: {strategy.about}")
        options = [(option, option_value(default), doc) for option, doc, default in strategy.option_docs()]
        if options:
            table(("option", "default", "what it does"), options)
        else:
            print("It has no options.")


def machines(as_json: bool) -> None:
    """List the presets with the figures of their data sheets, and this machine with those of its profile."""
    from calibrate.profiles import own_gpu_profile, own_profile
    from simulator.machine.presets import THIS_CPU, gpu_machine, load_machine, machine_names, rated
    from simulator.predict.preset import profile_of_preset

    machines, profiles = [], []
    for name in machine_names():
        preset = load_machine(name)
        profile = own_profile() if name == THIS_CPU else profile_of_preset(name, preset)
        machines.append(rated(preset if profile is None else load_machine(name, profile)))
        profiles.append(profile)
    own = own_gpu_profile()
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
                }
                for m, date in zip(machines, calibrated, strict=True)
            ],
        )
        return
    rows = [
        (m.name, str(len(m.devices)), str(m.devices[0].sms), f"{m.devices[0].peak_flops['fp32'] / 1e12:.2f}",
         f"{m.memories[0].bandwidth_bytes_per_s / 1e9:.0f}", units.memory_digits(m.memories[0].size_bytes, 2**30), date)
        for m, date in zip(machines, calibrated, strict=True)
    ]  # fmt: skip
    table(("machine", "devices", "SMs (cores)", "fp32 TFLOP/s", "GB/s", "GiB", "calibrated"), rows)


def rules(as_json: bool, pairs: Sequence[Path] = (), out: Path | None = None) -> None:
    """List the what-if rules with their records on what others measured, and what is not predicted; or judge a user's own `pairs`."""
    from ui.commands import own_pairs
    from ui.present import rules as words

    made = [judgment for path in pairs for judgment in own_pairs.judgments(path)]
    document = own_pairs.records(made) if pairs else words.documented()

    def show() -> None:
        terminal, names = console(), ", ".join(map(str, pairs))
        title, about = (f"What-if rules beside {names}", words.HOW_JUDGED) if pairs else (words.TITLE, words.ABOUT)
        terminal.print(Grid(words.record_cells(document), words.WORDS, title=title, caption=about))
        print_lines(terminal, (words.total_words(document), *words.miss_words(document), *map(words.judgment_words, made)))
        if document.left_out:
            terminal.print(Grid(words.left_out_cells(document), words.WORDS, title=words.LEFT_OUT_TITLE))

    print_then_write(as_json, document.document, show, None if out is None else lambda: document.save(out))


def profiles(as_json: bool) -> None:
    """List the calibration profiles in the data folder."""
    from traces.documents.profile import Profile
    from traces.documents.profile_files import default_folder, list_profiles
    from traces.errors import SchedcastError

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


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table of texts."""
    cells = [dict(zip(columns, row, strict=True)) for row in rows]
    console().print(Grid(cells, columns))
