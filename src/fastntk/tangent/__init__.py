"""The tangent engine: exact per-sample Jacobian rows, guards, products with J and Jᵀ, rows on disk."""

from fastntk.tangent.guards import checked_engine
from fastntk.tangent.in_memory import accumulate, linearise, rows_in_memory
from fastntk.tangent.operator import TangentOperator
from fastntk.tangent.rows import RowEngine, iter_rows, jacobian

__all__ = [
    "RowEngine",
    "TangentOperator",
    "accumulate",
    "checked_engine",
    "iter_rows",
    "jacobian",
    "linearise",
    "rows_in_memory",
]
