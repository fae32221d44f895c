"""Search. In: a job, a machine and its costs. Out: every strategy's plans ranked by their predicted step times, and why the best one wins."""
