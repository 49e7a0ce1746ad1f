"""The statistics logger of a training loop: scalars to every tracker, rollouts beside them."""
