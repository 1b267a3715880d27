"""What follows from an experiment: mesh, batch, MaxText's settings and every issue. Pure."""
