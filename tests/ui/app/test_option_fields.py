"""The form of a strategy's options: every strategy has one, and what it holds is what the command line takes."""

from dataclasses import fields

import pytest

from simulator.strategies import registry as strategies
from ui.app.request_form import option_fields, option_values, strategy_text
from ui.service.cache import FILES

#: Another value of a field than its default, by kind.
OTHER = {
    "switch": lambda field: not field.default,
    "choice": lambda field: field.choices[-1] if field.choices[-1] != field.default else field.choices[0],
    "open": lambda field: "3",
    "number": lambda field: field.default + 1 if isinstance(field.default, int) else field.default / 2,
    "text": lambda field: "3",
}


@pytest.mark.parametrize("name", strategies.names())
def test_every_option_of_every_strategy_has_a_field(name):
    known = strategies.get(name)
    offered = option_fields(name)
    assert {field.name for field in offered} == set(known.option_names) - FILES.keys()
    assert len(fields(known.options_type)) == len(known.option_names)
    assert all(field.about for field in offered), "each option is explained"
    assert strategy_text(name, {field.name: field.default for field in offered}) == name
    for field in offered:
        value = OTHER[field.kind](field)
        text = strategy_text(name, {field.name: value})
        strategies.parse(text)
        assert option_values(text) == {field.name: value}


def test_values_that_no_field_holds_are_left_out():
    assert option_values("turbodl:async=maybe,fuse=sideways,nosuch=1") == {}
    assert option_values("1f1b:stages=two") == {}
    assert option_values("nosuch:a=1") == {}
