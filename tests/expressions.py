"""Random SQL92 expressions and property sets: valid ones, ones of wrong types, and broken ones."""

from __future__ import annotations

from random import Random


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = ("a", "b", "c", "d", "A", "region", "amount", "TAGS", "KEYS", "_x", "$y", "inn", "none")
WORDS = ("AND", "OR", "NOT", "IS", "IN", "NULL", "TRUE", "FALSE", "BETWEEN")
PARTS = ("CONTAINS", "STARTSWITH", "ENDSWITH")
INTEGERS = _split("0 1 5 10 20 5l 7L 2147483647 2147483648 3000000000 9223372036854775807")
DECIMALS = _split("5.5 5. .5 5e3 1.0E-5 5.0 1e308 9007199254740993.0 4.9e-324 2147483648.0")
TEXTS = _split(r"'' 'x' 'eu' '5' '5.0' 'true' 'TRUE' 'it''s' 'a\b' '\' 'ü' '\😀' 'e' 'x\' '😀' '''' '1e3' 'NaN'")
TEXTS += ("' 5'", "'\n'", "'-- x'")
SIGNS = _split("= <> > >= < <= + - ( ) ,")
# Invalid literals, texts that are two tokens, and characters that begin no token.
ODD = _split("9223372036854775808 0.0 0e5 1e400 1e-400 010 00 5x 0l 5e 1.5.5 .. 5.l a5 5a ANDa NULLs")
NOISE = _split('!= == # && || "x" LIKE \' a.b a-b % * / /* -- İs oR \\ ; é aé 😀 \0 < \u017f \u0131N \u0665')
NOISE += ("< >", "> =", "\x0b", "\u00a0")
BLANKS = (" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\f", " -- x\n", "/**/", "/* x * / ** */", "--\r")
LETTERS = "''-*/ \\\n\r.eE0159lLa_$NOTR<>=(),+"

VALUES = _split(
    """
    0 1 5 05 +5 -5 -0 10 15 20 2147483647 2147483648 -2147483648 -2147483649 3000000000 4294967296 5L 1_000 0x10
    9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 99999999999999999999
    00000000000000000000000007 9007199254740993 9007199254740992 --5 + - +-5 5- \u0665 -\u0665\u0665 \u096b \U0001d7d3
    5.0 5.5 5. .5 . -.5e3 1e400 -1e400 1e-400 4.9e-324 NaN -NaN +NaN Infinity -Infinity nan inf 5d 5.5F 5dd 0x1p3
    0X1.8P1d 0x.p1 -0x1p-2 0x1p99999 -0x1p99999 5e e5 5e+3 5E-3 0.0 -0.0 0e5 1e3 9007199254740993.0 0x1.fffffffffffff8p0
    """
)
VALUES += _split(r"true TRUE True tRuE false yes x eu us europe it's it''s a\b a\ \ x\ ü 😀 \😀 e abc NULL ' ''")
VALUES += (" 5", "5 ", "\t5.5\n", "\x005", "5\u00a0", "x y", "\n", "true ", "1" * 400, "0." + "3" * 60)


class Expressions:
    """Make random expressions. parts: include RocketMQ 5's operators."""

    def __init__(self, random: Random, *, parts: bool = True) -> None:
        self._random = random
        self._parts = parts

    def any(self) -> str:
        """Return an expression: half are valid; others have types that may not fit, broken parts, or random letters."""
        kind = self._random.random()
        if kind < 0.5:
            return self.sound()
        if kind > 0.9:
            letters = "".join(self._random.choices(LETTERS, k=self._random.randint(0, 8)))
            return self._one("", "a = ", "a > 1 OR ") + letters + self._one("", "", " AND b = 'x'")
        tokens = self._loose(self._random.randint(0, 4))
        return self._written(tokens if kind < 0.7 else self._broken(tokens))

    def sound(self) -> str:
        return self._written(self._condition(self._random.randint(0, 3)))

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _name(self) -> str:
        return self._one(*NAMES)

    def _number(self) -> list[str]:
        sign = self._one("", "", "", "-", "+", "-")
        return [*([sign] if sign else []), self._one(*INTEGERS, *DECIMALS)]

    def _text(self) -> str:
        return self._one(*TEXTS)

    def _member(self) -> list[str]:
        texts = [self._text() for _ in range(self._random.randint(1, 6))]
        return ["IN", "(", *[token for text in texts for token in (text, ",")][:-1], ")"]

    def _condition(self, depth: int) -> list[str]:
        """Return an expression that compiles."""
        if depth:
            kind = self._random.randrange(4)
            left, right = self._condition(depth - 1), self._condition(depth - 1)
            if kind == 0:
                return ["NOT", "(", *left, ")"]
            if kind == 1:
                return ["(", *left, ")", self._one("AND", "OR"), "(", *right, ")"]
            return [*left, self._one("AND", "OR"), *right]
        name, no = self._name(), [*self._random.choice(([], ["NOT"]))]
        kinds = [
            lambda: [name, self._one("=", "<>"), self._text()],
            lambda: [name, self._one("=", "<>"), *self._number()],
            lambda: [name, self._one(">", ">=", "<", "<="), *self._number()],
            lambda: [*self._number(), self._one(">", ">=", "<", "<=", "=", "<>"), name],
            lambda: [
                name,
                *no,
                "BETWEEN",
                self._one("1", ".5", "5", "-5"),
                "AND",
                self._one("10", "5.5", "3000000000"),
            ],
            lambda: [name, *no, *self._member()],
            lambda: [name, "IS", *no, "NULL"],
            lambda: [name, self._one("=", "<>"), self._one("TRUE", "FALSE")],
            lambda: [name, self._one("=", "<>", ">", "<=", "<", ">="), self._name()],
            lambda: [self._one("TRUE", "FALSE", "NULL", name)],
        ]
        if self._parts:
            kinds += [lambda: [name, *no, self._one(*PARTS), self._text()]] * 2
        return self._random.choice(kinds)()

    def _loose(self, depth: int) -> list[str]:
        if not depth:
            literals = (*INTEGERS, *DECIMALS, *TEXTS, "TRUE", "FALSE", "NULL")
            return [self._one(*literals) if self._random.random() < 0.4 else self._name()]
        left, right = self._loose(depth - 1), self._loose(self._random.randrange(depth))
        no = [*self._random.choice(([], ["NOT"]))]
        kinds = [
            lambda: [*left, self._one("AND", "OR"), *right],
            lambda: [*left, self._one("=", "<>", ">", ">=", "<", "<="), *right],
            lambda: [self._one("NOT", "-", "+"), *left],
            lambda: ["(", *left, ")"],
            lambda: [*left, *no, "BETWEEN", *right, "AND", *self._loose(0)],
            lambda: [*left, *no, *self._member()],
            lambda: [*left, "IS", *no, "NULL"],
            lambda: ["(", *left, ")", self._one("=", "<>"), "(", *right, ")"],
        ]
        if self._parts:
            kinds.append(lambda: [*left, *no, self._one(*PARTS), self._text()])
        return self._random.choice(kinds)()

    def _broken(self, tokens: list[str]) -> list[str]:
        known = (*NAMES, *WORDS, *INTEGERS, *DECIMALS, *TEXTS, *SIGNS, *(PARTS if self._parts else ()))
        broken = list(tokens)
        for _ in range(self._random.randint(1, 2)):
            at = self._random.randint(0, len(broken))
            drawn = self._one(*known) if self._random.random() < 0.5 else self._one(*ODD, *NOISE)
            broken[at : at + self._random.randint(0, 2)] = self._random.choice(([], [drawn], [drawn]))
        return broken

    def _written(self, tokens: list[str]) -> str:
        """Join tokens with blanks where needed, with keywords in random case."""
        text = ""
        for token in tokens:
            if token in WORDS or token in PARTS:
                token = self._one(token, token.lower(), token.capitalize())
            grown = text[-1:].isalnum() or text[-1:] in ("_", "$")
            tight = not (grown and (token[0].isalnum() or token[0] in "_$")) and self._random.random() < 0.3
            text += ("" if tight else self._one(*BLANKS)) + token
        return text.strip(" ") + self._one("", "", " ", "\n")


def property_sets(random: Random, count: int) -> list[dict[str, str]]:
    """Return property sets; each name is missing half of the time."""
    return [{name: random.choice(VALUES) for name in NAMES[:-1] if random.random() < 0.6} for _ in range(count)]
