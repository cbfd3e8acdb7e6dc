"""Image classifiers: the CIFAR networks, builders for timm and Hugging Face models, and what is known of each."""

from fastntk.models.card import InputSpec, ModelCard, card_of, input_spec
from fastntk.models.forward import logits

__all__ = ["InputSpec", "ModelCard", "card_of", "input_spec", "logits"]
