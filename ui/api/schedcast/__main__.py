"""The command line, as `python -m schedcast`."""

from ui.cli import main

if __name__ == "__main__":
    main()
