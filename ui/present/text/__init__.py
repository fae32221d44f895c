"""Results as text. In: documents. Out: sentences, labels and table cells, the same for the terminal, reports and the app."""
