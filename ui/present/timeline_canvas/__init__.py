"""The interactive timeline: timelines go in, and a binary payload, a script and a style that draw it in a browser come out."""
