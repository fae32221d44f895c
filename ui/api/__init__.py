"""The Python interface: users import `schedcast`, and the other modules implement its functions."""
