"""Samples with permanent ids, where they come from, and the requests that point at them."""

from fastntk.data.request import ForgetRequest, Split, parse_classes
from fastntk.data.samples import Samples
from fastntk.data.sources import load_source

__all__ = ["ForgetRequest", "Samples", "Split", "load_source", "parse_classes"]
