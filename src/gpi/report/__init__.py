"""Figures and tables of runs, read from their directories."""
