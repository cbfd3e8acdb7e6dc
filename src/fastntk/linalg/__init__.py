"""Linear algebra on Jacobian rows: operators, running sums, solvers, sketches. Tensors only; no network is
known here.

(A + λI) w = Jᵀt,   A = JᵀJ (d × d),   Θ = JJᵀ (n·C × n·C)
"""

from fastntk.linalg.accumulate import GramAccumulator
from fastntk.linalg.choose import Choice, bytes_of_routes, choose
from fastntk.linalg.dual import Dual, DualFactor
from fastntk.linalg.factor import Eigen, Factor, PrimalCholesky
from fastntk.linalg.head_rows import HeadRows, Rows
from fastntk.linalg.matrix_free import MatrixFree
from fastntk.linalg.operators import DenseRows, FusedOperator, RowOperator, gram_product
from fastntk.linalg.paired import Pair, SampledOperator, solve_pair
from fastntk.linalg.probes import compress, compress_targets, output_probes
from fastntk.linalg.sketch import LowRank, gram_error, nystrom
from fastntk.linalg.solution import Solution
from fastntk.linalg.solvers import SOLVERS, decide, solve

__all__ = [
    "SOLVERS",
    "Choice",
    "DenseRows",
    "Dual",
    "DualFactor",
    "Eigen",
    "Factor",
    "FusedOperator",
    "GramAccumulator",
    "HeadRows",
    "LowRank",
    "MatrixFree",
    "Pair",
    "PrimalCholesky",
    "RowOperator",
    "Rows",
    "SampledOperator",
    "Solution",
    "bytes_of_routes",
    "choose",
    "compress",
    "compress_targets",
    "decide",
    "gram_error",
    "gram_product",
    "nystrom",
    "output_probes",
    "solve",
    "solve_pair",
]
