"""What several baselines share: descent on a copy of the model, importance of parameters."""
