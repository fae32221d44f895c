"""A trace becomes a profile. In: a recorded trace and the job that it is of. Out: a profile of its costs, and what was not matched."""
