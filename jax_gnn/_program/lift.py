"""``jax_gnn.lift``: a JAX function that gathers and scatters, with programs of edges inside."""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.ids import is_traced
from jax_gnn._core.public import public
from jax_gnn._program.backend import backend
from jax_gnn.graph import Graph

if TYPE_CHECKING:
    from jax_gnn._program.lift_run import Plan

_MAX_PLANS = 64
_STATE = threading.local()


class _Call(NamedTuple):
    """The arguments of one call.

    Attributes:
        leaves: All leaves of the arguments.
        places: The places of arrays among the leaves.
        tree: Tree structure of the arguments.
        key: A key that calls with the same plan share; None if arguments are not hashable.
    """

    leaves: list[Any]
    places: tuple[int, ...]
    tree: Any
    key: Any

    @property
    def arrays(self) -> list[Any]:
        """The arrays."""
        return [self.leaves[i] for i in self.places]


class _Traced(NamedTuple):
    """A traced function.

    Attributes:
        plan: The plan; None if the function runs as it is.
        tree: Tree structure of the results.
        types: Abstract results.
        reason: Why the function runs as it is.
    """

    plan: Plan | None
    tree: Any
    types: Sequence[Any]
    reason: str = ""


@public
class Lifted:
    """A function whose messages are programs, made by :func:`lift`."""

    def __init__(
        self,
        function: Callable[..., Any],
        graph: Graph | None = None,
        deterministic: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"lift takes a function, got {type(function).__name__}: pass the function that "
                "computes the messages, such as model.apply"
            )
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph must be a Graph or None, got {type(graph).__name__}")
        functools.update_wrapper(self, function)
        self._function = function
        self._graph = None if graph is None else graph.check()
        self._deterministic = arguments.check_flag("deterministic", deterministic)
        self._traces: OrderedDict[Any, _Traced] = OrderedDict()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Arguments, results and errors are its own."""
        call = _flatten(args, kwargs)
        traced = self._trace(call)
        if traced.plan is None:
            return self._function(*args, **kwargs)
        from jax_gnn._program.lift_order import Context

        context = Context(self._graph, self._deterministic)
        plan = traced.plan.settled(call.arrays, context)
        if not plan.is_lifted:
            return self._function(*args, **kwargs)
        results = plan.evaluate(call.arrays, context)
        typed = [_as_type(x, like) for x, like in zip(results, traced.types, strict=True)]
        return jax.tree.unflatten(traced.tree, typed)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind the function to an object, as a method of a class is bound."""
        return self if instance is None else functools.partial(self, instance)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the programs of a call, and the gathers and scatters that stay, with their lines.

        Arguments are those of a call; nothing runs.
        """
        call = _flatten(args, kwargs)
        traced = self._trace(call)
        name = getattr(self._function, "__name__", type(self._function).__name__)
        if traced.plan is None:
            return f"{name} runs as it is: {traced.reason}"
        texts: list[str] = []
        is_id = [_is_known_integer(x) for x in call.arrays]
        floats = [x for x, known in zip(call.arrays, is_id, strict=True) if not known]

        from jax_gnn._program.lift_order import Context

        plans = []

        def run(floats: Sequence[Any]) -> Any:
            rest = iter(floats)
            arrays = [x if k else next(rest) for x, k in zip(call.arrays, is_id, strict=True)]
            context = Context(self._graph, self._deterministic, texts)
            plans.append(plan.settled(arrays, context))
            return plans[0].evaluate(arrays, context)

        plan = traced.plan
        jax.eval_shape(run, floats)
        left = plans[0].explanations()
        head = f"{name}: {len(texts)} programs of edges, {len(left)} gathers or scatters left"
        return "\n\n".join([head, *(["\n".join(left)] if left else []), *texts])

    def _trace(self, call: _Call) -> _Traced:
        if call.key is not None and call.key in self._traces:
            self._traces.move_to_end(call.key)
            return self._traces[call.key]
        trees: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            leaves = list(call.leaves)
            for place, array in zip(call.places, arrays, strict=True):
                leaves[place] = array
            args, kwargs = jax.tree.unflatten(call.tree, leaves)
            results, tree = jax.tree.flatten(self._function(*args, **kwargs))
            trees.append(tree)
            return results

        if not call.places:
            return _Traced(None, None, (), "it takes no arrays")
        if _is_initializing():
            return _Traced(None, None, (), "it makes parameters")
        was_tracing, _STATE.is_tracing = is_tracing(), True
        try:
            closed = jax.make_jaxpr(flat)(*call.arrays)
        except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError):
            return _Traced(None, None, (), "Python looks at what its arrays hold")
        except Exception as error:  # the function's own, or it changes the state of a module
            return _Traced(None, None, (), f"it cannot be traced: {error}")
        finally:
            _STATE.is_tracing = was_tracing
        if closed.effects:
            traced = _Traced(None, None, (), "it has side effects")
        else:
            # The analysis is six modules, which only lifted functions need.
            from jax_gnn._program.lift_run import Plan

            plan = Plan.of(closed, getattr(self._function, "__name__", "lifted"))
            reason = "; ".join(plan.explanations()) or "it neither gathers nor scatters rows"
            is_lifted = plan.is_lifted
            traced = _Traced(plan if is_lifted else None, trees[0], closed.out_avals, reason)
        # Arrays that a function closes over may be others next time.
        if call.key is not None and not any(isinstance(x, jax.Array) for x in closed.consts):
            self._traces[call.key] = traced
            if len(self._traces) > _MAX_PLANS:
                self._traces.popitem(last=False)
        return traced


def is_tracing() -> bool:
    """Return whether this thread traces a lifted function."""
    return getattr(_STATE, "is_tracing", False)


def _is_initializing() -> bool:
    """Return whether a module of Haiku or Flax Linen makes parameters, which must not be traced."""
    haiku, linen = (sys.modules.get(name) for name in ("haiku", "flax.linen.module"))
    if haiku is not None:
        try:
            if haiku.running_init():
                return True
        except ValueError:  # outside of haiku.transform
            pass
    modules = [] if linen is None else linen._context.module_stack
    return any(module is not None and module.is_initializing() for module in modules)


def _flatten(args: Any, kwargs: Any) -> _Call:
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = tuple(i for i, x in enumerate(leaves) if isinstance(x, jax.Array | np.ndarray))
    key: Any = (
        tree,
        places,
        backend(),
        jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined,unused-ignore]
        *(
            jax.typeof(x) if i in set(places) else (type(x), x, repr(x))
            for i, x in enumerate(leaves)
        ),
    )
    try:
        hash(key)
    except TypeError:
        key = None
    return _Call(leaves, places, tree, key)


def _is_known_integer(x: Any) -> bool:
    return not is_traced(x) and jnp.issubdtype(x.dtype, np.integer)


def _as_type(x: Any, like: Any) -> Any:
    """Return a result with the weak type that the function gives it."""
    is_weak = getattr(like, "weak_type", False)
    if getattr(jax.typeof(x), "weak_type", False) == is_weak:
        return x
    primitive = jax.lax.convert_element_type_p
    return primitive.bind(x, new_dtype=like.dtype, weak_type=is_weak, sharding=None)


@public
def lift(
    function: Callable[..., Any], *, graph: Graph | None = None, deterministic: bool = False
) -> Lifted:
    """Compile the messages of a JAX function as programs, without a change to the function.

    The function's jaxpr is read: a gather of rows by an array of ids, ``x[senders]``, makes values
    of edges, and a scatter by such an array, ``jax.ops.segment_sum(m, receivers, n)`` or
    ``x.at[receivers].add(m)``, makes values of nodes. What lies between is computed as by
    :func:`program`: in one order of the edges, and in one kernel where that gains time. Sums of
    edges have one order, so results are equal bit for bit in every run. All else runs as it is, and
    so do edges whose programs are counted to gain no time.

    Args:
        function: Any function of arrays and pytrees: a layer, a model's ``apply``, a loss.
        graph: The edges that the function's id arrays hold, sorted before; by default they are
            sorted in each call, or once if they are known when the function is traced.
        deterministic: Whether edges, and sums of rows by any ids, are lifted even where that is
            counted to take longer than the function as it is, so that sums have one order on GPUs.

    Returns:
        A :class:`Lifted` with the arguments, results and errors of `function`, to which
        ``jax.jit``, ``jax.grad``, ``jax.vmap`` and all others apply.

    Raises:
        TypeError: `function` cannot be called, `graph` is no `Graph`, or `deterministic` no bool.

    Example:
        >>> @lift
        ... def convolution(x, senders, receivers, w):
        ...     return jax.ops.segment_sum(x[senders] @ w, receivers, x.shape[0])
        >>> convolution(jnp.eye(3), jnp.array([0, 1, 2]), jnp.array([1, 0, 0]), jnp.ones((3, 1)))
        Array([[2.],
               [1.],
               [0.]], dtype=float32)
    """
    return Lifted(function, graph, deterministic)
