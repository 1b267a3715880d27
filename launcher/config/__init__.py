"""What was asked: a typed experiment, composed by Hydra."""
