"""Documents. In: predictions and measurements. Out: their data, checked, as JSON, and quantities derived from them alone."""
