"""Compose, check, render, run and judge mixture-of-experts training with MaxText and Transformer Engine."""

__version__ = "0.1.0"
