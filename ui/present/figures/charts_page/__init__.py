"""Charts inside HTML pages. In: figures of plotly. Out: elements that carry them, and the script that draws them without a network."""
