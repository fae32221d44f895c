"""One process per device. In: a plan and the ranks. Out: a run where each process runs its device's tasks and its half of exchanges."""
