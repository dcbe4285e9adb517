"""Formulas as models write them, read into sympy by a grammar of our own: nothing of them is run.

    list     = sum {"," sum}, in "(...)", "[...]", "\\{...\\}" or bare
    equation = list ["=" list]
    sum      = ["+" | "-"] product {("+" | "-") product}
    product  = power {["*" | "/"] power}             what stands beside each other is multiplied
    power    = atom ["!"] ["^" power]
    atom     = number | letter | name | "(" sum ")" | "|" sum "|" | function
             | \\frac{}{} | \\sqrt[]{}
"""
import re

# Longer formulas, and numbers of more bits, are not read: comparing them has no bound.
_MOST_CHARACTERS = 400
_MOST_DEPTH = 40
_MOST_BITS = 20_000

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\(?:[A-Za-z]+|[{}%$]))"
    r"|(?P<word>[A-Za-z]+)|(?P<sign>\*\*|[-+*/^()\[\]{}|=,!_]))"
)
_NAMED = {"pi": "pi", "infty": "oo", "inf": "oo", "infinity": "oo"}
_FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "exp": "exp", "ln": "log",
    "log": "log", "sqrt": "sqrt", "abs": "Abs",
}
_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho",
          "sigma", "tau", "phi", "varphi", "psi", "omega", "chi", "xi", "eta", "kappa", "zeta")
# No products of letters.
_WORDS = {"or", "and", "to", "of", "is", "in", "if", "at", "by", "as", "an", "no", "so", "we",
          "the",
          "for", "are", "all", "not", "yes", "any", "one", "two", "six", "ten", "per", "day", "cm",
          "mm", "km", "kg", "ft"}
_SETTING = re.compile(
    r"\\(?:left|right|displaystyle|bigl?|bigr?|Bigl?|Bigr?|,|;|!|:|quad|qquad|\s)(?![A-Za-z])|[$]|~"
)
_WRITTEN = (
    (r"\\[dt]frac", r"\\frac"), (r"\\(?:cdot|times)(?![A-Za-z])", "*"),
    (r"\\div(?![A-Za-z])", "/"), (r"\\[lr]vert(?![A-Za-z])", "|"),
    ("[\u2212\u2013]", "-"), ("[\u00b7\u00d7]", "*"), ("\u00f7", "/"), ("\u03c0", r"\\pi "),
    ("\u221a", r"\\sqrt "), ("\u221e", r"\\infty "), ("\u00b2", "^2"), ("\u00b3", "^3"),
)
_IN_MATH = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# "The answer is x+3."
_SENTENCE = re.compile(r".*(?:\b(?:is|are|be)\b|:)\s+(?=\S)", re.DOTALL | re.IGNORECASE)


class Unreadable(ValueError):
    """The text is no formula that this grammar has."""


class Reader:
    """Reads one formula. `tokens` are pairs of a kind and a text."""

    def __init__(self, tokens):
        import sympy

        self.sympy = sympy
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    # The token here, its text for a sign.
    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, *texts):
        kind, text = self.peek()
        if kind in ("sign", "command") and text in texts:
            self.at += 1
            return text
        return None

    def need(self, text):
        if not self.take(text):
            raise Unreadable(f"'{text}' is missing")

    def deeper(self):
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise Unreadable("too many brackets")

    def equation(self):
        left = self.list()
        if not self.take("="):
            return left
        right = self.list()
        # What an unknown is: "y = 2x".
        if getattr(left, "is_Symbol", False):
            return right
        if getattr(right, "is_Symbol", False):
            return left
        if isinstance(left, tuple) or isinstance(right, tuple):
            raise Unreadable("an equation of lists")
        return ("=", (left - right,))

    def list(self):
        items = [self.item()]
        while self.take(","):
            items.append(self.item())
        return items[0] if len(items) == 1 else ("()", tuple(items))

    # A list in brackets, where nothing but a comma or the end follows it; else a sum.
    def item(self):
        before = self.at
        opening = self.take("(", "[", "\\{")
        if opening:
            self.deeper()
            try:
                items = [self.item()]
                while self.take(","):
                    items.append(self.item())
                closing = self.take(")", "]", "\\}")
                ends = self.peek()[1] in ("", ",", "=", ")", "]", "\\}")
                is_list = len(items) > 1 or opening == "\\{"
                if closing and ends and is_list and (opening == "\\{") == (closing == "\\}"):
                    return ("{}" if opening == "\\{" else opening + closing, tuple(items))
            except Unreadable:
                pass
            self.depth -= 1
            self.at = before
        return self.sum()

    def sum(self):
        self.deeper()
        sign = self.take("+", "-")
        value = self.product()
        value = -value if sign == "-" else value
        while sign := self.take("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        self.depth -= 1
        return value

    def product(self):
        value = self.power()
        while True:
            if sign := self.take("*", "/"):
                # "2 * -3"
                negative = self.take("-")
                factor = self.power()
                factor = -factor if negative else factor
                if sign == "/" and factor == 0:
                    raise Unreadable("a division by 0")
                value = value * factor if sign == "*" else value / factor
            elif self.begins_atom():
                value = value * self.power()
            else:
                return value

    def begins_atom(self):
        kind, text = self.peek()
        if kind == "sign":
            return text in ("(", "{")
        # Two numbers beside each other may be a mixed number, or two answers.
        return kind in ("word", "command") and text not in ("\\}", "\\%", "\\$")

    def power(self):
        self.deeper()
        value = self.atom()
        while self.take("!"):
            if not (value.is_Integer and 0 <= value <= 200):
                raise Unreadable("a factorial of no small number")
            value = self.sympy.factorial(value)
        if self.take("^", "**"):
            negative = self.take("-")
            exponent = self.power()
            value = self.raised(value, -exponent if negative else exponent)
        self.depth -= 1
        return value

    # Numbers that would not fit into memory are not worked out.
    def raised(self, base, exponent):
        numbers = base.atoms(self.sympy.Rational) | {self.sympy.Integer(2)}
        bits = max(int(max(abs(n.p), n.q)).bit_length() for n in numbers)
        size = max((abs(n) for n in exponent.atoms(self.sympy.Rational)), default=0)
        if bits * size > _MOST_BITS or (size > 1000 and not base.is_number):
            raise Unreadable("too large a power")
        if base == 0 and not exponent.is_positive:
            raise Unreadable("a power of 0")
        return base**exponent

    def atom(self):
        kind, text = self.peek()
        if kind == "number":
            self.at += 1
            return self.sympy.Rational(text)
        if opening := self.take("(", "[", "{"):
            value = self.sum()
            self.need({"(": ")", "[": "]", "{": "}"}[opening])
            return value
        if self.take("|"):
            value = self.sum()
            self.need("|")
            return self.sympy.Abs(value)
        if kind == "command":
            self.at += 1
            return self.named(text[1:])
        if kind == "word":
            self.at += 1
            return self.word(text)
        raise Unreadable(f"'{text}' begins no formula")

    # "sin" and "pi" are names, "xy" is x times y.
    def word(self, text):
        if text in _FUNCTIONS or text in _NAMED:
            return self.named(text)
        if len(text) > 3 or text.lower() in _WORDS:
            raise Unreadable(f"the word '{text}'")
        value = self.sympy.Integer(1)
        for letter in text[:-1]:
            value = value * self.letter(letter)
        last = self.letter(text[-1])
        if self.take("_"):
            last = self.symbol(f"{text[-1]}_{self.index()}")
        # The power behind it is the last letter's: "xy^2".
        if self.peek()[1] in ("^", "**") and len(text) > 1:
            self.at += 1
            negative = self.take("-")
            exponent = self.power()
            last = self.raised(last, -exponent if negative else exponent)
        return value * last

    def index(self):
        braces = self.take("{")
        kind, text = self.peek()
        if kind not in ("number", "word"):
            raise Unreadable("an index that is no name")
        self.at += 1
        if braces:
            self.need("}")
        return text

    def letter(self, text):
        return {"e": self.sympy.E, "i": self.sympy.I}.get(text) or self.symbol(text)

    def symbol(self, name):
        return self.sympy.Symbol(name, real=True)

    def named(self, name):
        if name == "frac":
            above, below = self.argument(), self.argument()
            if below == 0:
                raise Unreadable("a division by 0")
            return above / below
        if name == "sqrt":
            degree = self.sympy.Integer(2)
            if self.take("["):
                degree = self.sum()
                self.need("]")
            if not (degree.is_Integer and 1 <= degree <= 100):
                raise Unreadable("a root of that degree")
            value = self.argument()
            # The real root, as schools have it: the cube root of -8 is -2.
            if degree % 2 == 1:
                return self.sympy.real_root(value, degree)
            return value ** (1 / degree)
        if name in _NAMED:
            return getattr(self.sympy, _NAMED[name])
        if name in _FUNCTIONS:
            return self.function(name)
        if name in _GREEK:
            return self.symbol(name)
        raise Unreadable(f"'{name}' is not known")

    def function(self, name):
        # "\log_2 x", "\sin^2 x"
        base = self.argument() if name == "log" and self.take("_") else None
        exponent = self.argument() if self.take("^", "**") else None
        if self.peek()[1] in ("(", "[", "{", "|"):
            inside = self.atom()
        else:
            inside = self.power()
            while self.peek()[0] in ("number", "word") and self.begins_atom():
                inside = inside * self.power()  # "\sin 2x"
        large = [n for n in inside.atoms(self.sympy.Rational) if abs(n) > 10_000]
        if large and name in ("exp", "sinh", "cosh"):
            raise Unreadable("too large an exponent")
        value = getattr(self.sympy, _FUNCTIONS[name])(inside)
        if base is not None:
            value = value / self.sympy.log(base)
        return value if exponent is None else self.raised(value, exponent)

    # "{...}", or one digit or letter: "\frac12".
    def argument(self):
        if self.take("{"):
            value = self.sum()
            self.need("}")
            return value
        kind, text = self.peek()
        if kind == "number" and len(text) > 1 and text.isdigit():
            self.tokens[self.at] = ("number", text[1:])
            return self.sympy.Integer(text[0])
        return self.atom()


def _tokens(text):
    for pattern, by in _WRITTEN:
        text = re.sub(pattern, by, text)
    text = _SETTING.sub(" ", text).strip()
    # "1,234" is a number; "{,}" is how TeX writes that comma.
    text = re.sub(r"(?<=\d)\{?,\}?(?=\d{3}(?!\d))(?<!\d{4}[,}])", "", text)
    if len(text) > _MOST_CHARACTERS:
        raise Unreadable("too long")
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if not found:
            raise Unreadable(f"'{text[at:at + 1]}' is in no formula")
        tokens.append((found.lastgroup, found.group(found.lastgroup)))
        at = found.end()
    return tokens


def _read_whole(text):
    reader = Reader(_tokens(text))
    try:
        value = reader.equation()
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        # Unreadable is a ValueError; so is what sympy says of a value that it does not have.
        raise Unreadable(str(error)) from None
    if reader.at != len(reader.tokens):
        raise Unreadable(f"'{reader.peek()[1]}' is one too many")
    return value


def read(text):
    """What `text` says: a sympy expression, or (shape, parts) for tuples "()", intervals "[)",
    sets "{}" and equations "=", whose part is the left side less the right one. Unreadable."""
    math = _IN_MATH.findall(text)
    if len(math) == 1:
        text = next(part for part in math[0] if part)
    text = text.strip().rstrip(".").strip()
    try:
        return _read_whole(text)
    except Unreadable:
        rest = _SENTENCE.sub("", text, count=1)
        if rest in (text, ""):
            raise
        return _read_whole(rest)
