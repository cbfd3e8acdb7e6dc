"""Benchmarks that compare within one run and print ratios: ``python -m benchmarks [name ...] [--quick] [--out DIR]``.

A benchmark is a module with ``run(quick) -> dict`` (JSON-able) and ``table(result) -> str`` (Markdown). Records go to
``<out>/<name>.json``, together with the environment; ``python -m benchmarks.report <out>`` puts their tables into
docs/engine.md.
"""

NAMES = ("accuracy", "rows", "lora", "memory", "linear", "subset_vs_all", "sketches", "trace", "recorder", "plans", "largest")
"""In the order of the report; all but the slow ones run by default."""
SLOW = ("lora", "trace", "recorder", "plans", "largest")
