"""The app's pages and the links between them. A page's module is imported when the page is first opened: together they take seconds."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from traces.errors import SchedcastError
from ui.present.labels import markdown_escaped

#: The package whose modules are the pages.
PAGES = f"{__package__}.pages"


@dataclass(frozen=True)
class PageModule:
    """A module of `ui.app.pages`, and its constants. `address`: the last part of the page's address."""

    name: str
    title: str
    icon: str
    order: int
    address: str

    def draw(self) -> None:
        """Draw the page, or why its request is refused."""
        with refusals_shown():
            importlib.import_module(f"{PAGES}.{self.name}").page()


@contextmanager
def refusals_shown() -> Iterator[None]:
    """Show why a request is refused, in place of what is left of this block."""
    try:
        yield
    except SchedcastError as error:
        st.error(markdown_escaped(str(error)))


@cache
def pages() -> tuple[PageModule, ...]:
    """The modules of `ui.app.pages`, in the order of the menu."""
    listed = [_read(path) for path in Path(__file__).with_name("pages").glob("*.py") if path.stem != "__init__"]
    return tuple(sorted(listed, key=lambda page: (page.order, page.title)))


def _read(path: Path) -> PageModule:
    """The constants of a module, which is not imported. They are plain values, alone or several in one line."""
    values: dict[str, Any] = {}
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name | ast.Tuple):
            names = [each.id for each in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(each, ast.Name)]
            if {"TITLE", "ICON", "ORDER", "URL"} & set(names):
                literal = ast.literal_eval(statement.value)
                values |= dict(zip(names, literal if isinstance(target, ast.Tuple) else [literal], strict=True))
    address = values.get("URL") or path.stem.replace("_", "-")
    return PageModule(path.stem, values["TITLE"], values["ICON"], values["ORDER"], address)


def streamlit_page(page: PageModule) -> st.Page:
    """A page as Streamlit's menu and links take it. The first page has the root's address."""
    return st.Page(page.draw, title=page.title, icon=page.icon, url_path=page.address, default=page is pages()[0])


def link_ui(name: str, label: str = "", query: Mapping[str, str | list[str]] | None = None) -> None:
    """Draw a link to the page that the module `name` draws; nothing if there is no such page. `query`: what its link says."""
    page = next((page for page in pages() if page.name == name), None)
    if page is not None:
        st.page_link(streamlit_page(page), label=label or page.title, query_params=dict(query or {}))
