"""Rollouts that other tools left on disk: what a file is, and its rollouts one by one."""
