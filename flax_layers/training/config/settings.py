"""What a setting is: the command line and the checks are made of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints


class Number(NamedTuple):
    """A range of numbers."""

    kind: Callable[[str], Any]  # from what the command line says
    expected: str
    accept: Callable[[Any], bool]


COUNT = Number(int, "a whole number from 1 to 2147483647", lambda value: 1 <= value < 2**31)
WHOLE = Number(int, "a whole number from 0 to 2147483647", lambda value: 0 <= value < 2**31)
POSITIVE = Number(float, "a positive number", lambda value: 0 < value < math.inf)
NON_NEGATIVE = Number(float, "a number from 0", lambda value: 0 <= value < math.inf)
PART = Number(float, "a number between 0 and 1", lambda value: 0 < value < 1)
RATE = Number(float, "a number from 0 to below 1", lambda value: 0 <= value < 1)
COUNTS = Number(
    lambda text: tuple(map(int, text.split(","))),
    "whole numbers from 1 to 2147483647 with commas between, such as 15,10",
    lambda values: (
        isinstance(values, tuple)
        and all(type(value) is int and COUNT.accept(value) for value in values)
    ),
)


class Setting(NamedTuple):
    """What a field is annotated with.

    Attributes:
        group: Heading of the command's help.
        help: One line; for a switch, which is off by default, what it does.
        number: The range of numbers, if it takes numbers.
        metavar: Stands for the number in the command's help.
        flag: The command's option; None makes it of the field's name.
        choices: The words to choose from, None among them, if it takes words; `settings` fills this
            in from the field's type.
    """

    group: Literal["data", "model", "training", "execution"]
    help: str
    number: Number | None = None
    metavar: str | None = None
    flag: str | None = None
    choices: tuple[str | None, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all settings.

    Raises:
        ValueError: A value is out of range.
    """

    model: ClassVar[str]

    def __post_init__(self) -> None:
        for name, setting in settings(type(self)).items():
            value = getattr(self, name)
            if setting.number and not setting.number.accept(value):
                raise ValueError(f"{name} must be {setting.number.expected}, got {value}")
            if setting.choices and value not in setting.choices:
                raise ValueError(f"{name} must be one of {setting.choices}, got {value!r}")


def settings(config: type[Config]) -> dict[str, Setting]:
    """The settings of a class of configurations, by field.

    A subclass that gives a field another default need not repeat the setting.
    """
    found = {}
    left_out = getattr(config, "left_out", ())
    for base in reversed(config.__mro__):
        for name, hint in get_type_hints(base, include_extras=True).items():
            for setting in getattr(hint, "__metadata__", ()):
                words = () if setting.number else tuple(_words(hint.__origin__))
                found[name] = setting._replace(choices=words)
    return {name: setting for name, setting in found.items() if name not in left_out}


def _words(hint: Any) -> Iterator[str | None]:
    """The words of a Literal, or of a union of them and None."""
    for part in get_args(hint):
        yield from (
            [None] if part is type(None) else [part] if isinstance(part, str) else _words(part)
        )
