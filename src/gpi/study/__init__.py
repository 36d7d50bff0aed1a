"""Studies: the same tasks with several settings and seeds, as many runs of `gpi train`."""
