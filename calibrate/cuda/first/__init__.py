"""A GPU comes in that never ran Schedcast before; out go short checks of what Schedcast relies on there, and what to mend first."""
