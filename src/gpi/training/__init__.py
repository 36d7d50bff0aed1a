"""Running it: configuration, collection, the loop and the run directory."""
