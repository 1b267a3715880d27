"""What was submitted and what became of it: the folder of runs, read by any process at any time."""
