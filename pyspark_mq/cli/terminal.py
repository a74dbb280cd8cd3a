"""Rows as columns of text."""

Cells = tuple[str, ...]


def aligned(rows: list[Cells], left: int = 1) -> str:
    """Rows as columns: the first `left` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def number(value: int | float | None) -> str:
    """With thousands' commas; "-" for none."""
    return "-" if value is None else f"{value:,.0f}"
