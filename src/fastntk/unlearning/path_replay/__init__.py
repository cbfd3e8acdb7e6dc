"""``path-replay``: the recorded fine-tuning walked again without the forgotten samples; see docs/method.md."""
