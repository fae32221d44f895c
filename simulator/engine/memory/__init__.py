"""Memory. In: a plan and when its tasks ran. Out: bytes over time, their kinds, the peak, and when storage may be released."""
