"""A trace becomes a profile. In: a recorded trace and the job that it is of. Out: a profile with the recorded costs, and what was not matched."""
