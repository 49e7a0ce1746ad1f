"""The layout of AReaL's main branch, to test hooks on: its module paths, class names and signatures.

None of it is AReaL's code, and none of its work is done: tokens are counted up, weights do not exist.
"""

from areal.trainer.rl_trainer import PPOTrainer

__all__ = ["PPOTrainer"]
