"""Image classifiers: the CIFAR networks, builders for timm and Hugging Face, and what is known of each."""

from fastntk.models.build import build_model, known_models
from fastntk.models.card import InputSpec, ModelCard, card_of, input_spec
from fastntk.models.forward import device_of, logits

__all__ = ["InputSpec", "ModelCard", "build_model", "card_of", "device_of", "input_spec", "known_models", "logits"]
