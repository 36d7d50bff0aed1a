"""The run directory: its lock, tables and checkpoints, and reading them back."""
