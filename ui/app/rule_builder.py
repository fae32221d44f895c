"""The part of the trace page that builds a what-if rule: what to change, which kernels, and how much that is before it is applied."""

import streamlit as st

from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work
from simulator.replay.whatif.kernel_classes import kernel_classes
from simulator.replay.whatif.search import kernel_matches
from traces.errors import SchedcastError
from ui.app.state import select, text
from ui.present.text.labels import markdown_escaped
from ui.present.text.rules import OF_KERNELS, RULES, SPEEDS, match_cells, match_words, rule_text

#: The key of the text of the rules that are asked.
RULES_KEY = "rules text"
#: Kernel names that are offered.
OFFERED = 8
_OWN = "a search of my own"


def rule_builder_ui(replay: Replay) -> None:
    """Let the user put a rule together, see what it matches, and add it to those that are asked."""
    st.subheader("Build a change", anchor=False)
    first, second, third = st.columns(3)
    kind = select(first, "Change", list(RULES), "built kind", words=RULES.__getitem__)
    speed = select(second, "How much", list(SPEEDS), "built speed") if "{speed}" in kind else ""
    regex = ""
    if kind in OF_KERNELS:
        classes = {each.name: each.pattern for each in kernel_classes(device_work(replay))[:OFFERED]}
        chosen = select(third, "Kernels", [*classes, _OWN], "built kernels")
        regex = classes.get(chosen, "")
        if chosen == _OWN:
            regex = text(st.text_input, "Search kernels by a regular expression", "built regex", placeholder="gemm|conv").strip()
        if not regex:
            st.caption("Write what the kernels' names contain.")
            return
        try:
            matches = kernel_matches(replay, regex)
        except SchedcastError as error:
            st.error(markdown_escaped(str(error)))
            return
        st.write(markdown_escaped(match_words(matches)))
        st.dataframe(match_cells(matches), hide_index=True)
    rule = rule_text(kind, speed, regex)
    left, right = st.columns([3, 1], vertical_alignment="center")
    left.code(rule, language=None)
    right.button("Add the change", icon=":material/add:", on_click=add_rule, args=(rule,), width="stretch")


def add_rule(rule: str) -> None:
    """Add a rule to those that are asked, unless it is there."""
    lines = [line for line in str(st.session_state.get(RULES_KEY, "")).splitlines() if line.strip()]
    st.session_state[RULES_KEY] = "\n".join(dict.fromkeys([*lines, rule]))
