"""A real Kubernetes API server with a small cluster behind it, on one machine, for the tests: see README.md."""
