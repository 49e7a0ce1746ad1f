"""The statistics logger of a training loop: scalars to every tracker, rollouts to Trackio."""
