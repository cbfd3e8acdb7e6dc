"""The tangent engine: exact per-sample Jacobian rows, guards, products with J and Jᵀ, rows on disk."""

from fastntk.tangent.blocks import Block, blocks, truncated
from fastntk.tangent.guards import checked_engine
from fastntk.tangent.in_memory import accumulate, linearise, rows_in_memory
from fastntk.tangent.operator import TangentOperator
from fastntk.tangent.rows import RowEngine, iter_rows, jacobian, seconds_of_rows

__all__ = [
    "Block",
    "RowEngine",
    "TangentOperator",
    "accumulate",
    "blocks",
    "checked_engine",
    "iter_rows",
    "jacobian",
    "linearise",
    "rows_in_memory",
    "seconds_of_rows",
    "truncated",
]
