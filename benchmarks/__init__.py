"""How fast the command line is, measured beside a yardstick."""
