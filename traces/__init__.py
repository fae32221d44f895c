"""What was predicted or measured: profiles, timelines, comparisons and their exports. Imports nothing of ours."""
