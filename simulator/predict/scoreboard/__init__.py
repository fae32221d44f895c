"""Tables of measured steps come in; what was predicted for each row, and scores by source, GPU and family, go out."""
