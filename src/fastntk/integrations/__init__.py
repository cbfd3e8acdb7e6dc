"""Recorders for other people's training frameworks: ``huggingface`` (Trainer) and ``lightning``, imported when they are used.

Each is a callback that drives :class:`fastntk.Recorder`; after the training its ``run`` is what ``recorder.finish()`` gives in a
loop of one's own.
"""

from fastntk.base.lazy import lazy_names

__getattr__ = lazy_names(__name__, {})
