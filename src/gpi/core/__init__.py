"""Algorithm 2's mathematics: pure JAX functions on arrays, written for one agent; populations `vmap` them."""
