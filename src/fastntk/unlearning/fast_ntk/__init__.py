"""``fast-ntk``: the difference of two regressions on the rows, with squares (the paper's equation (1)) or cross-entropy."""
