"""What runs in the trainer's Python: MaxText's train step through XLA's GPU compiler. The folder is copied, never imported."""
