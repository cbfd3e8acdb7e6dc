"""Gradients where they are needed, whatever the caller switched off around the call.

Code that serves models runs under ``torch.no_grad()``, ``torch.inference_mode()`` or ``torch.set_grad_enabled(False)``. What
trains, or makes rows, is decorated with :data:`with_gradients`; the caller's mode is back after it.
"""

import torch

with_gradients = torch.inference_mode(mode=False)
"""Decorator: leaving inference mode switches gradients on, and ends ``no_grad`` as well."""
