"""What every room stands on: errors, progress, atomic files, digests, memory, text, downloads. Knows no model and no data set."""
