"""Sections III-V of the paper: the theory, in NumPy."""
