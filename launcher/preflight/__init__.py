"""Optional checks with the real thing, each in its own process."""
