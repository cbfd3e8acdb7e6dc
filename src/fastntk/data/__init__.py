"""Samples with permanent ids, where they come from, and the requests that point at them."""

from fastntk.data.request import ForgetRequest, Split, parse_classes
from fastntk.data.samples import Samples

__all__ = ["ForgetRequest", "Samples", "Split", "parse_classes"]
