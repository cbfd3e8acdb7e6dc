"""``tangent-replay``: the recipe replayed in a model of the network that is linear in what was tuned."""
