"""Serves the app with Streamlit, given the arguments of `streamlit`. `schedcast ui` runs this file with `python -P`.

Neither the folder in which it is started nor a user's PYTHONPATH can replace Schedcast's packages: they are loaded from the folder of this
file. Python's safe path (-P) keeps the current folder from replacing any other package.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])


def main() -> None:
    """Load Schedcast's packages, then serve."""
    sys.path.insert(0, ROOT)
    from ui.preload import load_packages

    load_packages()
    sys.path.remove(ROOT)
    from streamlit.web.cli import main as streamlit

    streamlit(prog_name="streamlit")


if __name__ == "__main__":
    main()
