"""SQL92 expressions such as `region = 'eu' AND amount BETWEEN 10 AND 20`, as in RocketMQ's filter module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from store.model.errors import FilterError
from store.read.conditions import (
    And,
    Cast,
    Condition,
    Constant,
    Contains,
    Equal,
    Negative,
    Node,
    Not,
    OneOf,
    Or,
    Ordered,
    Part,
    Property,
    Symbol,
    levels,
)
from store.read.sql_filter import SqlFilter

_GRAMMAR = r"""
    whole: disjunction
    ?disjunction: conjunction (OR conjunction)*
    ?conjunction: equality (AND equality)*
    ?equality: comparison
        | equality EQUAL comparison                                            -> equal
        | equality NOT_EQUAL comparison                                        -> not_equal
        | equality IS [NOT] NULL                                               -> is_null
    ?comparison: unary
        | comparison ORDER unary                                               -> ordered
        | comparison [NOT] BETWEEN unary AND unary                             -> between
        | comparison [NOT] IN "(" TEXT ("," TEXT)* ")"                         -> member
        | comparison [NOT] (CONTAINS | STARTSWITH | ENDSWITH) TEXT             -> contains
    ?unary: "+" unary
        | "-" unary                                                            -> negative
        | NOT unary                                                            -> negated
        | "(" disjunction ")"
        | TEXT                                                                 -> text
        | INTEGER                                                              -> integer
        | DECIMAL                                                              -> decimal
        | TRUE                                                                 -> true
        | FALSE                                                                -> false
        | NULL                                                                 -> null
        | NAME                                                                 -> property

    OR: "OR"i
    AND: "AND"i
    NOT: "NOT"i
    IS: "IS"i
    IN: "IN"i
    BETWEEN: "BETWEEN"i
    NULL: "NULL"i
    TRUE: "TRUE"i
    FALSE: "FALSE"i
    CONTAINS: "CONTAINS"i
    STARTSWITH: "STARTSWITH"i
    ENDSWITH: "ENDSWITH"i
    EQUAL: "="
    NOT_EQUAL.1: "<>"
    ORDER: /[<>]=?/
    NAME: /[a-z_$][a-z0-9_$]*/i
    TEXT: /'(''|[^'])*'/
    INTEGER: /0|[1-9][0-9]*l?/i
    DECIMAL.1: /[0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i

    %ignore /[ \t\n\r\f]/
"""

_LONG_MAX = (1 << 63) - 1
_MOST_LEVELS = 100  # of nesting: evaluating, copying and comparing are recursive
_MOST_OPEN = 500  # parser states: open parentheses, signs, words that need an operand
_MARGIN = 30  # characters shown before and after an error
_HINTS = (
    (r"!=|!", "write <> for 'not equal'"),
    (r"==?", "one = compares, and <> for 'not equal'"),
    (r"&&|\|\|", "write AND and OR"),
    (r"like\b", "there is no LIKE; use STARTSWITH, ENDSWITH or CONTAINS, such as name CONTAINS 'text'"),
    (r'"', "texts stand in single quotes"),
    (r"'", "the text that begins here does not end"),
    (r"--|/\*", "a comment ends with a line break, or with */"),
    (r"[.:@#-]\s*[a-z0-9_$]", "names are made of letters, digits, _ and $"),
    (r"[-+*/%]", "there is no arithmetic"),
)


_TEXT_OR_MARK = re.compile(r"'(?:''|[^'])*'|--|/\*")
_LINE_BREAK = re.compile(r"[\n\r]")


class _Fault(Exception):
    """A syntax error. position: index of the character."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(what)
        self.position, self.what = position, what


def parse(expression: str | None) -> SqlFilter:
    """Parse an expression. Raises `FilterError` with the position for every expression that RocketMQ rejects.

    Also rejects nesting of more than 100 levels, text that UTF-8 cannot encode, and text after a complete condition.
    RocketMQ ignores such text: it reads `a LIKE 'x'` as `a`, which matches no message.
    """
    if not isinstance(expression, str):
        raise FilterError(f"SQL92 expression {expression!r} is no text; write a condition, such as region = 'eu'")
    condition, end = parse_beginning(expression)
    if end < len(expression):
        what = "nothing can follow here, for the condition is complete"
        what += "; there is a ( too few" * (expression[end] == ")")
        raise _refusal(expression, _Fault(end, _with_hint(what, expression, end)))
    return SqlFilter(expression, condition)


def parse_beginning(expression: str) -> tuple[Condition | Constant, int]:
    """Parse the condition at the beginning, as RocketMQ does. Return it and the position after it. Raises
    `FilterError`.
    """
    try:
        expression.encode()
        condition, end = _parse(expression)
        if sum(1 for _ in levels(condition)) > _MOST_LEVELS:
            raise _Fault(0, f"it is nested more than {_MOST_LEVELS} deep; write it flatter, with IN or BETWEEN say")
    except UnicodeEncodeError as error:
        raise _refusal(expression, _Fault(error.start, "half a character")) from error
    except _Fault as fault:
        raise _refusal(expression, fault) from None
    return condition, end


def _parse(expression: str) -> tuple[Condition | Constant, int]:
    parser: Any = _grammar().parse_interactive(_without_comments(expression))
    end = len(expression)
    what = "it ends where more has to follow"
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            if len(parser.parser_state.state_stack) > _MOST_OPEN:
                raise _Fault(_at(token), f"more than {_MOST_OPEN} parentheses and signs are open here")
            try:
                parser.feed_token(token)
            except UnexpectedToken:
                end = _at(token)
                what = _with_hint(f"{str(token)!r} cannot stand here", expression, end)
                break
        return parser.feed_eof(), end
    except UnexpectedCharacters as error:
        at: int = error.pos_in_stream  # type: ignore[assignment]
        raise _Fault(at, _with_hint(f"{expression[at]!r} begins nothing of SQL92", expression, at)) from error
    except UnexpectedToken as error:
        raise _Fault(end, what) from error


def _without_comments(expression: str) -> str:
    last_break, last_end = max(expression.rfind("\n"), expression.rfind("\r")), expression.rfind("*/")
    pieces, kept, at = [], 0, 0
    while (found := _TEXT_OR_MARK.search(expression, at)) is not None:
        at = found.end()
        if found[0] == "--" and at <= last_break:  # as in RocketMQ: only if a line break follows somewhere
            at = next(_LINE_BREAK.finditer(expression, at)).end()
        elif found[0] == "/*" and at <= last_end:
            at = expression.index("*/", at) + 2
        else:
            continue
        pieces += [expression[kept : found.start()], " " * (at - found.start())]
        kept = at
    return "".join((*pieces, expression[kept:]))


def _with_hint(what: str, expression: str, position: int) -> str:
    for pattern, hint in _HINTS:
        if re.compile(pattern, re.IGNORECASE).match(expression, position):
            return f"{what}; {hint}"
    return what


def _refusal(expression: str, fault: _Fault) -> FilterError:
    at = fault.position
    first, last = max(0, at - _MARGIN), at + _MARGIN
    excerpt = "".join(character if character.isprintable() else " " for character in expression[first:last])
    before, behind = "..." * (first > 0), "..." * (last < len(expression))
    caret = " " * (len(before) + at - first) + "^"
    return FilterError(
        f"SQL92 expression, character {at + 1}: {fault.what}\n    {before}{excerpt}{behind}\n    {caret}"
    )


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Builds the condition. Raises `_Fault` for expressions that RocketMQ rejects after parsing."""

    def whole(self, condition: Node) -> Node:
        return _condition(condition, 0)

    def disjunction(self, *parts: Node | Token) -> Node:
        return Or(_conditions(parts))

    def conjunction(self, *parts: Node | Token) -> Node:
        return And(_conditions(parts))

    def equal(self, left: Node, sign: Token, right: Node) -> Node:
        for operand in (left, right):
            if operand == Constant(None):
                raise _Fault(_at(sign), "nothing equals NULL; write IS NULL, or IS NOT NULL")
        match left, right:
            case Constant(bool(word)), Constant(value) if not isinstance(value, bool):
                raise _Fault(_at(sign), f"{str(word).upper()} can be compared with properties and conditions")
        return Equal((left, right))

    def not_equal(self, left: Node, sign: Token, right: Node) -> Node:
        return Not((self.equal(left, sign, right),))

    def is_null(self, operand: Node, _is: Token, negated: Token | None, _null: Token) -> Node:
        null = Equal((operand, Constant(None)))
        return Not((null,)) if negated else null

    def ordered(self, left: Node, sign: Token, right: Node) -> Node:
        return _ordered(left, sign, cast(Symbol, str(sign)), right)

    def between(self, operand: Node, negated: Token | None, word: Token, low: Node, _and: Token, high: Node) -> Node:
        inside = And((_ordered(operand, word, ">=", low), _ordered(operand, word, "<=", high)))
        if negated:
            return Not((inside,))
        if isinstance(low, Constant) and isinstance(high, Constant) and _is_above(low.value, high.value):
            raise _Fault(_at(word), f"nothing lies between {low.value} and {high.value}; the smaller one stands first")
        return inside

    def member(self, operand: Node, negated: Token | None, word: Token, *texts: Token) -> Node:
        if not isinstance(operand, Property):
            raise _Fault(_at(word), "IN takes a property on its left; for its negation write NOT IN")
        member = OneOf((operand,), tuple(map(_text, texts)))
        return Not((member,)) if negated else member

    def contains(self, operand: Node, negated: Token | None, word: Token, text: Token) -> Node:
        return Contains(cast(Part, word.upper()), (operand,), _text(text), negated is not None)

    def negative(self, operand: Node) -> Node:
        return Negative((operand,))

    def negated(self, word: Token, operand: Node) -> Node:
        return Not((_condition(operand, _at(word)),))

    def text(self, token: Token) -> Node:
        return Constant(_text(token))

    def integer(self, token: Token) -> Node:
        digits = token.rstrip("lL").lstrip("0") or "0"
        if len(digits) > len(f"{_LONG_MAX}") or int(digits) > _LONG_MAX:  # int() rejects thousands of digits
            raise _Fault(_at(token), f"{digits} is larger than {_LONG_MAX}; write {digits}.0 for a double")
        return Constant(int(digits))

    def decimal(self, token: Token) -> Node:
        number = float(token)
        if number in (0.0, float("inf")):
            raise _Fault(_at(token), f"{token} is {number} as a double, which RocketMQ refuses; 0 is an integer")
        return Constant(number)

    def true(self, _word: Token) -> Node:
        return Constant(True)

    def false(self, _word: Token) -> Node:
        return Constant(False)

    def null(self, _word: Token) -> Node:
        return Constant(None)

    def property(self, name: Token) -> Node:
        return Property(str(name))


@lru_cache(1)
def _grammar() -> Lark:
    # Without ASCII, case-insensitive matching accepts some non-ASCII letters in keywords.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", start="whole", transformer=_Builder(), g_regex_flags=re.ASCII)


def _at(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def _conditions(parts: Sequence[Node | Token]) -> tuple[Node, ...]:
    words = (0, *(_at(part) for part in parts if isinstance(part, Token)))
    operands = (part for part in parts if not isinstance(part, Token))
    return tuple(_condition(operand, at) for operand, at in zip(operands, words, strict=True))


def _condition(node: Node, position: int) -> Condition | Constant:
    if isinstance(node, Property):
        return Cast((node,))
    if isinstance(node, Negative) or (isinstance(node, Constant) and not isinstance(node.value, bool | None)):
        raise _Fault(position, "a text or a number is no condition; compare it with something")
    return node


def _ordered(left: Node, sign: Token, symbol: Symbol, right: Node) -> Node:
    for operand in (left, right):
        if isinstance(operand, Condition) or (isinstance(operand, Constant) and not _is_number(operand.value)):
            raise _Fault(_at(sign), f"{sign} compares numbers, and properties as numbers; texts only with = and <>")
    return Ordered(symbol, (left, right))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_above(low: Any, high: Any) -> bool:
    if isinstance(low, float) or isinstance(high, float):  # as in Java: the other one is converted
        return float(low) > float(high)
    return bool(low > high)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")
