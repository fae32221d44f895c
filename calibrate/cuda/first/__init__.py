"""A GPU comes in that never ran Stepcast before; out go short checks of what Stepcast relies on there, and what to mend first."""
