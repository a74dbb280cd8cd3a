from __future__ import annotations

from store.model.html_table import html_table, html_text

SCRIPT = "<script>alert('&')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;"


def test_every_text_is_escaped() -> None:
    shown = html_table(SCRIPT, [SCRIPT], [[SCRIPT]]) + html_text(SCRIPT)
    assert shown.count(ESCAPED) == 4
    assert "<script" not in shown


def test_numbers_have_separators_and_missing_values_a_dash() -> None:
    shown = html_table("", ["a", "b"], [[1234567, None]])
    assert ">1,234,567</td>" in shown
    assert ">-</td>" in shown
