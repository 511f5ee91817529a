"""Softmaxes over edges that are written out, as one equation.

People write ``exp(x - segment_max(x)[ids]) / segment_sum(exp(…))[ids]``, as jraph does, with a
constant that is added to the sums, and ``where`` for nodes without edges. All of it is the softmax
of a program, which attention's kernels compute. A shift that edges of a node share changes no
softmax, so ``stop_gradient`` on the maxima changes no derivative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_gnn._program.lift_ids import SOFTMAX, Flat, Indexing, Use
from jax_gnn._program.lift_rows import Equation, needed_equations

_COMPARISONS = frozenset(("eq", "ne", "gt", "lt", "ge", "le", "is_finite", "not"))
_IDENTITIES = frozenset(("copy", "copy_p", "stop_gradient"))


def with_softmaxes(flat: Flat) -> Flat:
    """Return a jaxpr with softmaxes as one equation each; the same one if there are none."""
    finder = _Finder(flat)
    eqns, ids = [], []
    for eqn in flat.eqns:
        found = finder.softmax(eqn) if eqn.primitive.name == "div" else None
        if found is not None:
            scores, use = found
            ids.append(use.eqn.invars[1])
            params = {"ids": ids[-1], "num_nodes": use.end.num_nodes}
            eqn = eqn.replace(primitive=SOFTMAX, invars=[scores], params=params)
        eqns.append(eqn)
    if not ids:
        return flat
    return flat._replace(eqns=needed_equations(eqns, [*flat.outvars, *ids]))


class _Finder(Indexing):
    """Finds softmaxes that are written out."""

    def softmax(self, eqn: Equation) -> tuple[Any, Use] | None:
        """Return the scores of a quotient that is a softmax, and the sum's use of ids; or None."""
        exp, divisor = self._made_by(eqn.invars[0], "exp"), eqn.invars[1]
        if exp is None:
            return None
        scores, shift = exp.invars[0], None
        is_shifted = self._made_by(scores, "sub")
        if is_shifted is not None:
            scores, shift = is_shifted.invars
        # Sums of exponentials are 1 at least where the maximum was subtracted.
        epsilon = 0.5 * float(np.finfo(eqn.outvars[0].aval.dtype).eps) if is_shifted else 0.0
        sums = self._read(divisor, epsilon)
        scatter = None if sums is None else self._reduction(sums[0], "sum", epsilon)
        if sums is None or scatter is None or scatter.eqn.invars[2] is not eqn.invars[0]:
            return None
        if scatter.key != sums[1] or self.constant(scatter.eqn.invars[0]) != 0:
            return None
        if is_shifted is not None:
            maxima = self._read(shift, 0.0)
            largest = None if maxima is None else self._reduction(maxima[0], "max", 0.0)
            if maxima is None or largest is None or largest.eqn.invars[2] is not scores:
                return None
            if not scatter.key == largest.key == maxima[1]:
                return None
        return scores, scatter

    def _made_by(self, var: Any, name: str) -> Equation | None:
        eqn = self.producer(var)
        return eqn if eqn is not None and eqn.primitive.name == name else None

    def _read(self, var: Any, epsilon: float) -> tuple[Any, Any] | None:
        """Return what edges read of nodes, and the key of the ids; None for other values."""
        eqn = self.producer(self._simplified(var, epsilon))
        use = None if eqn is None else self.uses.get(id(eqn))
        return None if use is None or use.reduce else (use.eqn.invars[0], use.key)

    def _reduction(self, var: Any, reduce: str, epsilon: float) -> Any:
        """Return the reduction that makes rows of nodes, or None."""
        eqn = self.producer(self._simplified(var, epsilon))
        use = None if eqn is None else self.uses.get(id(eqn))
        return use if use is not None and use.reduce == reduce else None

    def _simplified(self, var: Any, epsilon: float) -> Any:
        """Return a value without what changes nothing where there are edges.

        That is a constant of at most `epsilon` that is added, a maximum with at most 1 if `epsilon`
        is positive, and a selection by a comparison of the value with 0 or infinity.
        """
        while (eqn := self.producer(var)) is not None:
            name, operands = eqn.primitive.name, eqn.invars
            if name in _IDENTITIES:
                var = operands[0]
            elif name == "add" or (name == "max" and epsilon):
                numbers = [self.constant(x) for x in operands]
                bound = epsilon if name == "add" else 1.0
                rest = [x for x, c in zip(operands, numbers, strict=True) if c is None]
                if len(rest) != 1 or not all(c is None or 0 <= c <= bound for c in numbers):
                    break
                (var,) = rest
            elif name == "select_n" and len(operands) == 3:
                rest = [x for x in operands[1:] if self.constant(x) is None]
                if len(rest) != 1 or not self._is_comparison(operands[0], rest[0]):
                    break
                (var,) = rest
            else:
                break
        return var

    def _is_comparison(self, condition: Any, value: Any) -> bool:
        """Whether a condition compares a value with 0 or infinity."""
        eqn = self.producer(condition)
        if eqn is None or eqn.primitive.name not in _COMPARISONS:
            return False
        if eqn.primitive.name == "not":
            return self._is_comparison(eqn.invars[0], value)
        numbers = [self.constant(x) for x in eqn.invars if x is not value]
        return value in eqn.invars and all(c in (0.0, np.inf, -np.inf) for c in numbers)
