"""A real Slurm of many nodes on one machine, for the tests: see README.md."""
