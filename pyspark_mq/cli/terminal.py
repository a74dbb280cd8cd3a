"""Terminal output: visible control characters, aligned columns, questions."""

import logging
import re
import sys

import click

# All except line ends and tabs. The last ranges change the text direction, or stand for bytes that are not UTF-8.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udcff]")
_IN_A_LINE = {"\n": "^J", "\t": "^I"}

Cells = tuple[str, ...]
YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def visible(text: str) -> str:
    """Escape control characters as `cat -v` does."""
    return CONTROLS.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code in range(0xDC80, 0xDD00):  # a byte that is not UTF-8
        code -= 0xDC00
    if code > 0xFF:
        return f"<U+{code:04X}>"
    if code >= 0x80:
        low = code - 0x80
        return "M-" + (chr(low) if 0x20 <= low < 0x7F else f"^{chr(low ^ 0x40)}")
    return f"^{chr(code ^ 0x40)}"


def visible_body(body: bytes) -> bytes:
    return visible(body.decode(errors="surrogateescape")).encode()


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line with control characters escaped. Commands print all output with this, except message bodies."""
    click.echo(visible(str(text)), err=err, nl=nl)


class VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def must_confirm(question: str, yes: bool) -> None:
    """Ask the user, and abort the command at "no". Does not ask with `yes`, or without a terminal."""
    if not yes and at_a_terminal():
        click.confirm(visible(question), abort=True, err=True)


def at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def aligned(rows: list[Cells], left: int = 1) -> str:
    """Return rows as lines with aligned columns. left: the number of columns that are aligned to the left."""
    shown = [tuple(map(cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    )


def cell(text: str) -> str:
    return visible(re.sub("[\n\t]", lambda found: _IN_A_LINE[found[0]], text))


def number(value: int | float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
