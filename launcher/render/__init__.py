"""What will run: the bundle and every file in it, as pure functions of a plan."""
