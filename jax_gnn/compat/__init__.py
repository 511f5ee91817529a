"""This library in the place of others' functions: see ``docs/compat.md``.

:func:`install` replaces segment reductions of ``jax.ops``, ``jax.lax.ragged_dot``, and what jraph
and e3nn-jax have of that kind. Values stay the same; what this library does not take, or would not
make faster, goes to the function that was replaced.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from jax_gnn.compat import _e3nn, _jax, _jraph

__all__ = ["install", "patched", "uninstall"]

_PACKAGES = {"jax": _jax, "jraph": _jraph, "e3nn_jax": _e3nn}

_replacements: dict[Callable[..., Any], Callable[..., Any]] = {}
"""By original, of all packages that were loaded so far."""

_changes: list[Callable[[], str | None]] = []
"""What undoes :func:`install`, in order."""


def install(*modules: types.ModuleType) -> tuple[str, ...]:
    """Replaces functions of ``jax.ops``, ``jax.lax``, jraph and e3nn-jax, until :func:`uninstall`.

    Packages that are not imported yet are left alone, so call it after imports. What a jitted
    function has traced before stays as it is. A second call replaces what is new.

    Args:
        modules: of yours or of others, in which names imported from these packages are replaced
            too, as by :func:`patched`.

    Returns:
        What was replaced: names of attributes, and of arguments that had such a function as their
        default.

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
    names = []
    for name, undo in _replace(*_own_modules(), *_with_submodules(modules)):
        names.append(name)
        _changes.append(undo)
    return tuple(sorted(names))


def uninstall() -> tuple[str, ...]:
    """Puts back all that :func:`install` has replaced, but for what others have replaced since.

    Returns:
        What was put back.
    """
    names = [undo() for undo in reversed(_changes)]
    _changes.clear()
    return tuple(sorted(name for name in names if name is not None))


@contextlib.contextmanager
def patched(*modules: types.ModuleType) -> Iterator[tuple[str, ...]]:
    """Replaces the same functions inside a ``with`` block, and in the given modules alone.

    These are attributes of a module, and of the modules below it that are loaded, which *are* one
    of the functions, as after ``from jax.ops import segment_sum``; and defaults of arguments, and
    attributes of classes. A module that calls ``jax.ops.segment_sum`` by its whole name has none of
    its own: for that there is :func:`install`, or ``patched(jax.ops)``.

    Args:
        modules: in which to replace.

    Returns:
        A context manager that gives what was replaced.

    Raises:
        TypeError: one of ``modules`` is no module.

    Example:
        >>> with patched(jax.ops) as names:
        ...     y = jax.ops.segment_max(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), 3)
        >>> names[0]
        'jax.ops.segment_max'
    """
    _check_modules(modules)
    changes = list(_replace(*_with_submodules(modules)))
    try:
        yield tuple(sorted(name for name, _ in changes))
    finally:
        for _, undo in reversed(changes):
            undo()


def _check_modules(modules: tuple[Any, ...]) -> None:
    for module in modules:
        if not isinstance(module, types.ModuleType):
            raise TypeError(f"modules must be modules, got {module!r:.200}")


def _own_modules() -> list[types.ModuleType]:
    """Those of the packages, as far as they are loaded."""
    loaded = [sys.modules[name] for name in ("jraph", "e3nn_jax") if name in sys.modules]
    return [sys.modules["jax.ops"], sys.modules["jax.lax"], *_with_submodules(tuple(loaded))]


def _with_submodules(modules: tuple[types.ModuleType, ...]) -> list[types.ModuleType]:
    roots = tuple(f"{module.__name__}." for module in modules)
    below = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(roots) and isinstance(module, types.ModuleType)
    ]
    return [*modules, *below]


def _replace(*modules: types.ModuleType) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Replaces; gives what, and what puts it back and says so."""
    for package, replacements in _PACKAGES.items():
        if package in sys.modules:
            for original, replacement in replacements.replacements():
                if original not in _replacements.values():  # it is replaced already
                    _replacements.setdefault(original, replacement)
    for module in {id(module): module for module in modules}.values():
        yield from _replace_attributes(module, module.__name__, module.__name__)


def _replace_attributes(
    owner: Any, name: str, module: str
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    for key, value in list(vars(owner).items()):
        where = f"{name}.{key}"
        function = value.__func__ if isinstance(value, staticmethod) else value
        if (replacement := _found(function)) is not None:
            static = isinstance(value, staticmethod)
            new = staticmethod(replacement) if static else replacement
            yield where, _set(owner, key, new, where)
        elif getattr(value, "__module__", None) != module:
            continue
        elif inspect.isfunction(function):
            yield from _replace_defaults(function, where)
        elif isinstance(value, type) and not isinstance(owner, type):
            yield from _replace_attributes(value, where, module)


def _replace_defaults(function: Any, name: str) -> Iterator[tuple[str, Callable[[], str | None]]]:
    defaults = function.__defaults__ or ()
    new = tuple(_found(value) or value for value in defaults)
    if any(a is not b for a, b in zip(defaults, new, strict=True)):
        where = f"{name}(…)"
        yield where, _set(function, "__defaults__", new, where)
    by_name = function.__kwdefaults__ or {}
    changed = {key: _found(value) or value for key, value in by_name.items()}
    if any(by_name[key] is not value for key, value in changed.items()):
        where = f"{name}(*, …)"
        yield where, _set(function, "__kwdefaults__", changed, where)


def _found(value: Any) -> Any:
    """What replaces a value, if anything does."""
    return _replacements.get(value) if isinstance(value, types.FunctionType) else None


def _set(owner: Any, key: str, value: Any, where: str) -> Callable[[], str | None]:
    """Sets an attribute; gives what puts it back and names it, or None if it is another now."""
    is_own = not isinstance(owner, types.FunctionType)
    before = vars(owner)[key] if is_own else getattr(owner, key)
    setattr(owner, key, value)

    def undo() -> str | None:
        now = vars(owner).get(key) if is_own else getattr(owner, key)
        if now is not value:
            return None
        setattr(owner, key, before)
        return where

    return undo
