"""Search. In: a job, a machine and its costs. Out: every strategy's plans ranked by predicted step time, and why the best one wins."""
