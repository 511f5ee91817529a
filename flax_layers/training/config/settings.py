"""Settings of a training: dataclass fields from which the command's options and checks are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

T = TypeVar("T")
Group = Literal["data", "model", "training", "execution"]


class Number(NamedTuple):
    """A range of numbers: how to parse one, its description, its check, its name in help texts."""

    parse: Callable[[str], Any]
    expected: str
    accept: Callable[[Any], bool]
    metavar: str


def _is_count(value: float) -> bool:
    return 1 <= value < 2**31


# Counts and seeds are int32 on the device.
COUNT = Number(int, "a whole number from 1 to 2147483647", _is_count, "N")
WHOLE = Number(int, "a whole number from 0 to 2147483647", lambda value: 0 <= value < 2**31, "N")
POSITIVE = Number(float, "a positive number", lambda value: 0 < value < math.inf, "RATE")
NON_NEGATIVE = Number(float, "a number from 0", lambda value: 0 <= value < math.inf, "RATE")
PART = Number(float, "a number between 0 and 1", lambda value: 0 < value < 1, "SHARE")
RATE = Number(float, "a number from 0 to below 1", lambda value: 0 <= value < 1, "RATE")
COUNTS = Number(
    lambda text: tuple(-1 if word == "all" else int(word) for word in text.split(",")),
    "whole numbers from 1 to 2147483647, or 'all' (-1), with commas between, such as 15,10",
    lambda values: (
        isinstance(values, tuple)
        and all(type(v) is int and (v == -1 or _is_count(v)) for v in values)
    ),
    "N,N",
)


class Setting(NamedTuple):
    """Metadata of a configuration's field.

    Attributes:
        group: Heading in the command's help.
        help: One line; for a switch, which is off by default, the effect of switching it on.
        number: Range of numbers, if the setting is a number.
        metavar: Name of the number in the command's help.
        flag: Option of the command; None derives it from the field's name.
        choices: Words to choose from, and perhaps None, which `settings` reads from the type.
        switches: Help texts of options ``--WORD`` for all words but the first, in the place of one
            option that takes a word.
    """

    group: Group
    help: str
    number: Number | None = None
    metavar: str | None = None
    flag: str | None = None
    choices: tuple[str | None, ...] = ()
    switches: tuple[str, ...] = ()


def setting(
    default: T,
    group: Group,
    help: str,
    number: Number | None = None,
    *,
    metavar: str | None = None,
    flag: str | None = None,
    switches: tuple[str, ...] = (),
) -> T:
    """Return a dataclass field with a default and a `Setting`, whose arguments follow it."""
    metavar = metavar or (number.metavar if number else None)
    metadata = {"setting": Setting(group, help, number, metavar, flag, (), switches)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all settings, whose subclasses are frozen dataclasses.

    Attributes:
        model: Name of the model's recipe.
        title: Name and origin of the model.

    Raises:
        ValueError: A value is out of range.
    """

    model: ClassVar[str]
    title: ClassVar[str]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for name, setting in settings(type(self)).items():
            value = getattr(self, name)
            if setting.number and not setting.number.accept(value):
                raise ValueError(f"{name} must be {setting.number.expected}, got {value}")
            if setting.choices and value not in setting.choices:
                raise ValueError(f"{name} must be one of {setting.choices}, got {value!r}")


def settings(config: type[Config]) -> dict[str, Setting]:
    """Return the settings of a class of configurations by field.

    A subclass that gives a field another default inherits the field's setting.
    """
    by_name: dict[str, Setting] = {}
    # A field's later definitions replace earlier ones, base classes first, as dataclasses do.
    for base in reversed(config.__mro__):
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            if "setting" in field.metadata:
                by_name[field.name] = field.metadata["setting"]
    hints = get_type_hints(config)
    excluded = getattr(config, "excluded", ())
    return {
        name: setting._replace(choices=() if setting.number else tuple(_words(hints[name])))
        for name, setting in by_name.items()
        if name not in excluded
    }


def _words(hint: object) -> Iterator[str | None]:
    """Yield the words of a Literal, or of a union of Literals and None."""
    for part in get_args(hint):
        if part is type(None):
            yield None
        elif isinstance(part, str):
            yield part
        else:
            yield from _words(part)
