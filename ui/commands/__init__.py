"""One module per group of commands, imported when a command runs. In: parsed options. Out: printed tables, documents and report folders."""
