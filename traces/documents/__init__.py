"""Documents. In: predictions and measurements. Out: their data, checked, as JSON, and what follows from them alone."""
