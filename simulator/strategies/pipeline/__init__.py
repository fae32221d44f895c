"""Pipeline stages. In: a training graph and the order of a pipeline's work. Out: what each stage computes, and when each rank runs what."""
