"""ZeRO. In: builders of replicas, and their layout. Out: shards of parameters, and the tasks that gather, sum and update them."""
