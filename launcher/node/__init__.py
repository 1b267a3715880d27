"""What runs beside the trainer on each node: standard library only, Python >= 3.9, copied into every bundle."""
