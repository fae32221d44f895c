"""What MkDocs calls while it builds the site: which files are pages, and the page that is made from the command line's help."""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "ui/api/SKILL.md", "docs/*.md", "traces/data/*/README.md")
PICTURES = (".github/*.png", ".github/*.webp", ".github/*.svg")
COMMANDS = "docs/commands.md"
#: Where pages are in the site that are not at `docs/NAME.html`.
PLACES = {"docs/start.md": "index.html", "README.md": "docs/overview.html", "ui/api/SKILL.md": "docs/skill.html"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site: those of the theme, and ours, each under its path in the repository."""
    pages = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    listed = [File.generated(config, page, abs_src_path=str(ROOT / page)) for page in pages]
    listed += [File.generated(config, COMMANDS, content=commands())]
    for file in listed:
        file.dest_uri = PLACES.get(file.src_uri, file.dest_uri)
    for path in (path for pattern in PICTURES for path in ROOT.glob(pattern)):  # INCLUDED: a folder with a dot is left out otherwise
        file = File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = f"pictures/{path.name}"
        listed.append(file)
    return Files([*listed, *(file for file in files if file.src_dir != config.docs_dir)])


def commands() -> str:
    """The page of all commands and their options, in Markdown, from the command line itself."""
    sys.path.insert(0, str(ROOT))
    import typer
    from typer.cli import get_docs_for_click

    from ui.cli import app

    command = typer.main.get_command(app)
    for name, each in list(command.commands.items()):
        if each.hidden:  # an earlier name
            del command.commands[name]
        for parameter in each.params:
            parameter.hidden = False  # as --help-all shows them
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="schedcast"), name="schedcast", title="Commands")
    return text.replace("[bold]", "").replace("[/]", "")
