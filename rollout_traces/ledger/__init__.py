"""The columns of all rows of a step, traced or not: how they are computed, packed and read."""
