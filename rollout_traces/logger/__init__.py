"""RolloutLogger and its pipeline: what a training loop holds."""
