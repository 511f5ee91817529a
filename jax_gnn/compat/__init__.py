"""Replacements of functions of JAX, jraph and e3nn-jax by this library: see ``docs/compat.md``.

:func:`install` replaces segment reductions of ``jax.ops``, ``jax.lax.ragged_dot``, and the like
functions of jraph and e3nn-jax. Values stay the same; calls that this library does not take, or
would not make faster, go to the original function.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jax_gnn.compat import _e3nn, _jax, _jraph

__all__ = ["install", "patched", "uninstall"]

UndoStep: TypeAlias = Callable[[], str | None]
"""Function that restores an attribute and returns its name, or None if other code has set it."""

_PACKAGES = {"jax": _jax, "jraph": _jraph, "e3nn_jax": _e3nn}

_replacements: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Replacements by original function, for all packages that were imported at some call."""

_makers: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Replacements of functions that make layers, for calls of :func:`install` that lift them."""

_undo_steps: list[UndoStep] = []
"""Functions that undo :func:`install`, in order."""


def install(*modules: types.ModuleType, lift: bool = False) -> tuple[str, ...]:
    """Replace functions of ``jax.ops``, ``jax.lax``, jraph and e3nn-jax, until :func:`uninstall`.

    Call it after imports, since packages that are not imported yet are skipped. A second call
    replaces functions that were imported since. Programs that are traced already do not change.

    Args:
        modules: further modules in which to replace names imported from these packages, see
            :func:`patched`.
        lift: whether layers that jraph makes from now on are lifted, see :func:`jax_gnn.lift`.

    Returns:
        Names of the replaced attributes, and of functions with replaced defaults.

    Raises:
        TypeError: one of ``modules`` is no module.

    Example:
        >>> install()[:2]
        ('jax.lax.ragged_dot', 'jax.ops.segment_max')
        >>> jax.ops.segment_sum(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), 3)
        Array([4., 0., 2.], dtype=float32)
        >>> len(uninstall())
        5
    """
    _check_modules(modules)
    loaded = [sys.modules[name] for name in ("jraph", "e3nn_jax") if name in sys.modules]
    if lift and "jraph" in sys.modules:
        for maker, replacement in _jraph.makers():
            if maker not in _replacements.values():  # else replaced by an earlier call
                _makers.setdefault(maker, replacement)
                _replacements.setdefault(maker, replacement)
    packages = [sys.modules["jax.ops"], sys.modules["jax.lax"], *_with_submodules(tuple(loaded))]
    names = []
    for name, undo in _replace(*packages, *_with_submodules(modules)):
        names.append(name)
        _undo_steps.append(undo)
    return tuple(sorted(names))


def uninstall() -> tuple[str, ...]:
    """Restore all functions that :func:`install` replaced, and return their names.

    Attributes that other code has set since stay as they are.
    """
    names = [undo() for undo in reversed(_undo_steps)]
    _undo_steps.clear()
    for maker in _makers:
        _replacements.pop(maker, None)
    return tuple(sorted(name for name in names if name is not None))


@contextlib.contextmanager
def patched(*modules: types.ModuleType) -> Iterator[tuple[str, ...]]:
    """Replace the same functions inside a ``with`` block, in some modules only.

    Replaced are attributes of a module and of its loaded submodules that *are* one of the
    functions, as after ``from jax.ops import segment_sum``, attributes of classes, and defaults of
    arguments. A module that calls ``jax.ops.segment_sum`` by its full name has no such attribute:
    use :func:`install`, or ``patched(jax.ops)``.

    Args:
        modules: modules in which to replace.

    Returns:
        A context manager that gives the names of the replaced attributes.

    Raises:
        TypeError: one of ``modules`` is no module.

    Example:
        >>> with patched(jax.ops) as names:
        ...     y = jax.ops.segment_max(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), 3)
        >>> names[0]
        'jax.ops.segment_max'
    """
    _check_modules(modules)
    replaced = list(_replace(*_with_submodules(modules)))
    try:
        yield tuple(sorted(name for name, _ in replaced))
    finally:
        for _, undo in reversed(replaced):
            undo()


def _check_modules(modules: tuple[object, ...]) -> None:
    for module in modules:
        if not isinstance(module, types.ModuleType):
            raise TypeError(f"modules must be modules, got {module!r:.200}")


def _with_submodules(modules: tuple[types.ModuleType, ...]) -> list[types.ModuleType]:
    roots = tuple(f"{module.__name__}." for module in modules)
    below = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(roots) and isinstance(module, types.ModuleType)
    ]
    return [*modules, *below]


def _replace(*modules: types.ModuleType) -> Iterator[tuple[str, UndoStep]]:
    """Replace functions in modules; yield the name of each attribute, and its undo step."""
    # Packages may be imported between two calls: their functions are looked up at each one.
    for package, replacements in _PACKAGES.items():
        if package in sys.modules:
            for original, replacement in replacements.replacements():
                if original not in _replacements.values():  # else replaced by an earlier call
                    _replacements.setdefault(original, replacement)
    for module in {id(module): module for module in modules}.values():
        yield from _replace_attributes(module, module.__name__, module.__name__)


def _replace_attributes(
    owner: types.ModuleType | type, name: str, module: str
) -> Iterator[tuple[str, UndoStep]]:
    for key, value in list(vars(owner).items()):
        attribute = f"{name}.{key}"
        is_static = isinstance(value, staticmethod)
        function = value.__func__ if is_static else value
        if (replacement := _replacement_of(function)) is not None:
            new = staticmethod(replacement) if is_static else replacement
            yield attribute, _set(owner, key, new, attribute)
        elif getattr(value, "__module__", None) != module:
            continue
        elif inspect.isfunction(function):
            yield from _replace_defaults(function, attribute)
        elif isinstance(value, type) and not isinstance(owner, type):
            yield from _replace_attributes(value, attribute, module)


def _replace_defaults(function: types.FunctionType, name: str) -> Iterator[tuple[str, UndoStep]]:
    defaults = function.__defaults__ or ()
    new = tuple(_replacement_of(value) or value for value in defaults)
    if any(a is not b for a, b in zip(defaults, new, strict=True)):
        yield f"{name}(…)", _set(function, "__defaults__", new, f"{name}(…)")
    kwdefaults = function.__kwdefaults__ or {}
    new_kwdefaults = {key: _replacement_of(value) or value for key, value in kwdefaults.items()}
    if any(kwdefaults[key] is not value for key, value in new_kwdefaults.items()):
        yield f"{name}(*, …)", _set(function, "__kwdefaults__", new_kwdefaults, f"{name}(*, …)")


def _replacement_of(value: object) -> Callable[..., Any] | None:
    return _replacements.get(value) if isinstance(value, types.FunctionType) else None


def _set(owner: object, key: str, value: object, name: str) -> UndoStep:
    """Set an attribute, and return its undo step."""
    # vars() gives static methods unbound; functions do not have their defaults there.
    in_vars = not isinstance(owner, types.FunctionType)
    before = vars(owner)[key] if in_vars else getattr(owner, key)
    setattr(owner, key, value)

    def undo() -> str | None:
        current = vars(owner).get(key) if in_vars else getattr(owner, key)
        if current is not value:
            return None
        setattr(owner, key, before)
        return name

    return undo
