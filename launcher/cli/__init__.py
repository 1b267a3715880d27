"""The command line: one short function a verb, found by name and imported when it is asked for."""
