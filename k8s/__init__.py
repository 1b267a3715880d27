"""Kubernetes: what an administrator applies once, and a real API server for tests."""
