"""What a cluster with Slurm needs beside the launcher."""
