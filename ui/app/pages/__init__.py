"""The app's pages, one module each. In: what a user chooses. Out: one page.

A module defines `TITLE`, `ICON` (a Material symbol such as ":material/tune:"), `ORDER` (its place in the menu), a function `page()` that
draws it, and optionally `URL`, its address if that is not the module's name.
"""
