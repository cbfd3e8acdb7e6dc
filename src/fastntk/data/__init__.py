"""Samples with permanent ids, where they come from, and the requests that point at them."""

from fastntk.data.id_files import ids_in_file, ids_of_persons, matching_ids
from fastntk.data.request import ForgetRequest, Split, parse_classes
from fastntk.data.samples import Samples
from fastntk.data.sources import load_source

__all__ = [
    "ForgetRequest",
    "Samples",
    "Split",
    "ids_in_file",
    "ids_of_persons",
    "load_source",
    "matching_ids",
    "parse_classes",
]
