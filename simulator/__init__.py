"""From a training job to a plan, and from a plan to a predicted timeline."""
