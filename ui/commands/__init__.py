"""What each command does, loaded when it is called."""
