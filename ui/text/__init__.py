"""Results in words and tables. In: documents. Out: sentences and table cells, the same for terminal, report and app."""
