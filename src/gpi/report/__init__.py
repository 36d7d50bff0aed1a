"""What people look at: figures and tables of runs, which are read from their directories."""
