"""The app's pages, one module each. In: what a user chooses. Out: one page.

A module defines `TITLE`, `ICON` (a Material symbol such as ":material/tune:"), `ORDER` (its place in the menu), `page()` that draws it (a
SchedcastError that it raises is shown), and optionally `URL`, its address if that is not the module's name. The constants are plain values,
which are read before a module is imported."""
