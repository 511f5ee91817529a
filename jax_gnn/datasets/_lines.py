"""Text files: their lines, and the integers on them."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

_BLANKS = " \t"
_DIGITS = re.compile(r"[ \t]*[0-9]{1,19}[ \t]*")  # int() takes 1_0 and digits of all scripts, too


def read_lines(path: Path, longest: int = 2**62) -> Iterator[tuple[int, str]]:
    """The lines of UTF-8 text, gzipped where the name ends with ``.gz``, and their numbers from 1.

    A line ends with LF, CR LF or CR and with nothing else: U+0085, U+2028 and U+001C, at which
    ``str.splitlines`` cuts, may be in names. A byte order mark at the beginning is left out.

    Args:
        path: the file.
        longest: how many bytes a line may have, its end included.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such text; the line is named.
    """
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            # Latin-1 is one character a byte: what is not UTF-8 is found in its own line.
            text = io.TextIOWrapper(file, "latin-1")
            while line := text.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise ValueError(f"line {number} is longer than {longest:,} bytes")
                codec = "utf-8" if number > 1 else "utf-8-sig"
                yield number, line.removesuffix("\n").encode("latin-1").decode(codec)
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} is not UTF-8: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"damaged after line {number}: {error}") from error


def is_blank(line: str) -> bool:
    """Whether there is nothing on a line; other white space than ASCII's may be a name."""
    return not line.strip(_BLANKS)


def integers(number: int, what: str, fields: Sequence[str], start: int, stop: int) -> list[int]:
    """The integers in [start, stop) that fields of a line are, in decimal digits.

    Args:
        number: of the line.
        what: the fields are, with an article.
        fields: at least one.
        start: the smallest.
        stop: above the largest.

    Raises:
        ValueError: a field is none; the message says what was expected, and where.
    """
    if all(map(_DIGITS.fullmatch, fields)):
        values = list(map(int, fields))
        if start <= min(values) and max(values) < stop:
            return values
    bad = next(f for f in fields if not _DIGITS.fullmatch(f) or not start <= int(f) < stop)
    raise ValueError(f"line {number}: expected {what} from {start} to {stop - 1}, got {bad!r:.80}")
