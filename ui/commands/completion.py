"""What the shell offers after an option: names of models, strategies and machines. Loads them when it is asked, never PyTorch."""


def models(incomplete: str) -> list[str]:
    """The built-in models that begin so."""
    from simulator.model.workloads import registry

    return _beginning(incomplete, registry.names())


def strategies(incomplete: str) -> list[str]:
    """The strategies that begin so; after the colon, the options of the strategy, but for those that it already has."""
    from simulator.strategies import registry

    name, colon, given = incomplete.partition(":")
    if not colon or name not in registry.names():
        return _beginning(incomplete, registry.names())
    *before, _ = given.split(",")
    settled = {option.partition("=")[0] for option in before}
    options = [option for option, *_ in registry.get(name).option_docs() if option not in settled]
    return _beginning(incomplete, [f"{name}:{','.join([*before, f'{option}='])}" for option in options])


def machines(incomplete: str) -> list[str]:
    """The machines that begin so; after a comma, those that are not named yet."""
    from simulator.machine.presets import THIS_CPU, machine_names
    from simulator.machine.this_gpu import THIS_GPU

    *before, _ = incomplete.split(",")
    names = [name for name in (THIS_CPU, THIS_GPU, *machine_names()) if name not in before]
    return _beginning(incomplete, [",".join([*before, name]) for name in names])


def _beginning(incomplete: str, names) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
