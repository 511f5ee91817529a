"""Lines of text files, and the integers on them."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_BLANKS = " \t"
_DIGITS = re.compile(r"[ \t]*[0-9]{1,19}[ \t]*")  # int() takes 1_0 and digits of all scripts, too


def read_lines(path: Path, max_bytes: int = 2**62) -> Iterator[tuple[int, str]]:
    """Yield the lines of UTF-8 text, and their numbers from 1; ``.gz`` files are decompressed.

    A line ends with LF, CR LF or CR and with nothing else: U+0085, U+2028 and U+001C, at which
    ``str.splitlines`` cuts, may be in names. A byte order mark at the beginning is left out. Text
    that is not UTF-8, or a line of more than ``max_bytes``, is a ValueError that names the line.
    """
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            # Latin-1 is one character a byte, so that bytes that are not UTF-8 fail line by line.
            text = io.TextIOWrapper(file, "latin-1")
            while line := text.readline(max_bytes + 1):
                number += 1
                if len(line) > max_bytes:
                    raise ValueError(f"line {number} is longer than {max_bytes:,} bytes")
                codec = "utf-8" if number > 1 else "utf-8-sig"
                yield number, line.removesuffix("\n").encode("latin-1").decode(codec)
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} is not UTF-8: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"damaged after line {number}: {error}") from error


def is_blank(line: str) -> bool:
    """Return whether a line is empty; other white space than ASCII's may be a name."""
    return not line.strip(_BLANKS)


def rows_of(lines: Iterable[tuple[int, str]], *columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is not blank, separated by tabs, and its number."""
    for number, line in lines:
        if not is_blank(line):
            row = line.split("\t")
            if len(row) not in columns:
                expected = " or ".join(map(str, columns))
                raise ValueError(f"line {number}: expected {expected} columns, got {len(row)}")
            yield number, row


def integers(number: int, what: str, fields: Sequence[str], start: int, stop: int) -> list[int]:
    """Parse the fields of a line, at least one, as decimal integers in [start, stop).

    Errors name the number of the line, and describe the fields as ``what``, with an article.
    """
    if all(map(_DIGITS.fullmatch, fields)):
        values = list(map(int, fields))
        if start <= min(values) and max(values) < stop:
            return values
    bad = next(f for f in fields if not _DIGITS.fullmatch(f) or not start <= int(f) < stop)
    raise ValueError(f"line {number}: expected {what} from {start} to {stop - 1}, got {bad!r:.80}")
