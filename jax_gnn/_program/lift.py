"""``jax_gnn.lift``: a JAX function that gathers and scatters, with programs of edges inside."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.export
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.ids import is_traced
from jax_gnn._core.public import Decorated, public
from jax_gnn._program.backend import settings
from jax_gnn.graph import Graph

if TYPE_CHECKING:
    from jax_gnn._program.lift_run import Plan

_MAX_PLANS = 64


class _State(threading.local):
    """The state of a thread.

    Attributes:
        is_tracing: Whether it traces a lifted function.
        was_asked: Whether the function asked for that, and so runs differently otherwise.
    """

    is_tracing = False
    was_asked = False


_STATE = _State()


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
        reason: Why the function runs as it is.
        types: Abstract results that are arrays.
        tree: Tree structure of all results.
        leaves: All results, None for arrays.
    """

    plan: Plan | None
    reason: str
    types: Sequence[Any] = ()
    tree: Any = None
    leaves: Sequence[Any] = ()

    def results(self, arrays: Iterable[Any]) -> Any:
        """Return the results with these arrays, of the weak types that the function gives them."""
        typed = iter([_as_type(x, like) for x, like in zip(arrays, self.types, strict=True)])
        leaves = [next(typed) if x is None else x for x in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)


@public
class Lifted(Decorated):
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
        super().__init__(function, graph, deterministic)
        self._graph = None if graph is None else graph.check()
        self._deterministic = arguments.check_flag("deterministic", deterministic)
        self._traces: OrderedDict[Any, _Traced] = OrderedDict()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Arguments, results and errors are its own."""
        call = _flatten(args, kwargs)
        traced, evaluate = self._trace(call)
        plan = traced.plan
        if plan is not None:
            from jax_gnn._program.lift_order import Context

            context = Context(self._graph, self._deterministic)
            plan = plan.settled(call.arrays, context)
        if plan is None or not plan.is_lifted:
            if evaluate is None:
                return self._function(*args, **kwargs)
            return traced.results(evaluate(*call.arrays))
        return traced.results(plan.evaluate(call.arrays, context))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind the function to an object, as a method of a class is bound."""
        return self if instance is None else functools.partial(self, instance)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the programs of a call, and the gathers and scatters that stay, with their lines.

        Arguments are those of a call; arrays may be abstract, as of `jax.eval_shape`. Nothing runs.
        """
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_abstract = [_is_array(x) and not _is_known_integer(x) for x in leaves]
        texts: list[str] = []

        def explain(arrays: Sequence[Any]) -> None:
            rest = iter(arrays)
            new = [next(rest) if a else x for a, x in zip(is_abstract, leaves, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, new)
            texts.append(self._explanation(_flatten(args, kwargs)))

        jax.eval_shape(explain, [x for a, x in zip(is_abstract, leaves, strict=True) if a])
        return texts[0]

    def _explanation(self, call: _Call) -> str:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        traced, _ = self._trace(call)
        if traced.plan is None:
            return f"{name} runs as it is: {traced.reason}"
        from jax_gnn._program.lift_order import Context

        texts: list[str] = []
        context = Context(self._graph, self._deterministic, texts)
        plan = traced.plan.settled(call.arrays, context)
        plan.evaluate(call.arrays, context)
        left = plan.explanations()
        head = f"{name}: {len(texts)} programs of edges, {len(left)} gathers or scatters left"
        return "\n\n".join([head, *(["\n".join(left)] if left else []), *texts])

    def _trace(self, call: _Call) -> tuple[_Traced, Callable[..., Any] | None]:
        """Return the traced function, and a function that computes its arrays as it does.

        The second is None unless the function was traced now, and would trace the same again.
        """
        known = None if call.key is None else self._traces.pop(call.key, None)
        if known is not None:  # other threads may call, too
            self._traces[call.key] = known
            return known, None
        outs: dict[str, Any] = {}

        def flat(*arrays: Any) -> list[Any]:
            leaves = list(call.leaves)
            for place, array in zip(call.places, arrays, strict=True):
                leaves[place] = array
            args, kwargs = jax.tree.unflatten(call.tree, leaves)
            results, outs["tree"] = jax.tree.flatten(self._function(*args, **kwargs))
            outs["leaves"] = [None if isinstance(x, jax.Array) else x for x in results]
            return [x for x in results if isinstance(x, jax.Array)]

        if not call.places:
            return _Traced(None, "it takes no arrays"), None
        if any(jax.export.is_symbolic_dim(size) for x in call.arrays for size in x.shape):
            return _Traced(None, "sizes of its arrays are symbols"), None
        modules = _initializing_modules()
        if any(modules):
            return _Traced(None, "it makes parameters"), None
        was_tracing, was_asked = _STATE.is_tracing, _STATE.was_asked
        _STATE.is_tracing, _STATE.was_asked = True, False
        try:
            closed = jax.make_jaxpr(flat)(*call.arrays)
            # Modules change their state, and Python looks at what arrays hold that are known.
            is_same = not modules and not _STATE.was_asked and all(map(is_traced, call.arrays))
        except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError):
            return _Traced(None, "Python looks at what its arrays hold"), None
        except Exception as error:  # the function's own, or it changes the state of a module
            return _Traced(None, f"it cannot be traced: {error}"), None
        finally:
            _STATE.is_tracing, _STATE.was_asked = was_tracing, was_asked or _STATE.was_asked
        plan, reason = None, "it has side effects"
        if not closed.effects:
            # The analysis is six modules, which only lifted functions need.
            from jax_gnn._program.lift_run import Plan

            plan = Plan.of(closed, getattr(self._function, "__name__", "lifted"))
            reason = "; ".join(plan.explanations()) or "it neither gathers nor scatters rows"
            plan = plan if plan.is_lifted else None
        traced = _Traced(plan, reason, closed.out_avals, **outs)
        # Arrays that a function closes over may be others next time.
        if call.key is not None and not closed.consts:
            self._traces[call.key] = traced
            if len(self._traces) > _MAX_PLANS:
                self._traces.popitem(last=False)
        return traced, jex.jaxpr_as_fun(closed) if is_same and not closed.effects else None


def is_tracing() -> bool:
    """Return whether this thread traces a lifted function."""
    _STATE.was_asked |= _STATE.is_tracing
    return _STATE.is_tracing


def _initializing_modules() -> list[bool]:
    """Return whether each module of Haiku or Flax Linen that runs makes parameters.

    Those that do must not be traced.
    """
    haiku, linen = (sys.modules.get(name) for name in ("haiku", "flax.linen.module"))
    modules = [] if linen is None else linen._context.module_stack
    states = [module.is_initializing() for module in modules if module is not None]
    if haiku is not None:
        with contextlib.suppress(ValueError):  # outside of haiku.transform
            states.append(haiku.running_init())
    return states


def _flatten(args: Any, kwargs: Any) -> _Call:
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = tuple(i for i, x in enumerate(leaves) if isinstance(x, jax.Array | np.ndarray))
    key: Any = (
        tree,
        places,
        settings(),
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


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _is_known_integer(x: Any) -> bool:
    is_known = isinstance(x, jax.Array | np.ndarray) and not is_traced(x)
    return is_known and jnp.issubdtype(x.dtype, np.integer)


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
