"""Running the jobs of a study: on this machine, side by side, or on a Ray cluster."""
