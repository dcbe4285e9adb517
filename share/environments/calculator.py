"""Exact arithmetic as a tool: a file of plain functions, as TRL takes them.

    roles:
      tools: {environment: {command: [python3, retort_env.py, --tools, calculator.py]}}

The same tool as an environment, which scores rows with an `answer`:

    roles:
      tools: {environment: {command: [python3, retort_env.py, "calculator.py:Calculator"]}}
"""
import ast
import fractions
import operator

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MAX_CHARACTERS = 1000
_MAX_EXPONENT = 1000  # of a number that is written with one
_MAX_BITS = 10_000  # of a numerator or denominator


def calculate(expression: str) -> str:
    """
    Evaluates an arithmetic expression exactly, with fractions of whole numbers.

    Args:
        expression: Numbers, parentheses and + - * / // % **, for example "(1 + 2) / 4".

    Returns:
        The result: a whole number, a decimal number where that is exact, or a fraction.
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {_MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"'{expression}' is no arithmetic expression: {error.msg}") from None
    return _shown(_value(tree.body, expression))


class Calculator:
    """`calculate`, and the reward 1 where its last result is the row's `answer`, else 0. A row
    without an answer has no reward. What the model says in the end no environment is told:
    `{type: numeric}` compares that."""

    def reset(self, answer=None, **row):
        self._answer = None if answer is None else calculate(str(answer))
        self._result = None

    def calculate(self, expression: str) -> str:
        self._result = calculate(expression)
        return self._result

    def get_reward(self):
        return None if self._answer is None else float(self._result == self._answer)


Calculator.calculate.__doc__ = calculate.__doc__  # which a tool's schema is made of


def _value(node, expression):
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return fractions.Fraction(node.value)
    if isinstance(node, ast.Constant) and type(node.value) is float:
        # As it is written: 0.1 is a tenth.
        text = ast.get_source_segment(expression.strip(), node).replace("_", "")
        if abs(int(text.lower().partition("e")[2] or 0)) > _MAX_EXPONENT:
            raise ValueError(f"the exponent of '{text}' is too large")
        return fractions.Fraction(text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, expression)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, expression), _value(node.right, expression)
        if isinstance(node.op, ast.Pow):
            return _checked(_power(left, right))
        if type(node.op) in _BINARY:
            if right == 0 and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
                raise ZeroDivisionError("division by zero")
            return _checked(fractions.Fraction(_BINARY[type(node.op)](left, right)))
    raise ValueError(f"'{ast.unparse(node)}' is not arithmetic; there are numbers, parentheses "
                     "and + - * / // % **")


def _power(base, exponent):
    if exponent.denominator != 1:
        raise ValueError("an exponent has to be a whole number")
    if base == 0 and exponent < 0:
        raise ZeroDivisionError("division by zero")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent.numerator) > _MAX_BITS and abs(base) != 1:
        raise ValueError("the result has too many digits")
    return base ** exponent.numerator


def _checked(value):
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("the result has too many digits")
    return value


def _shown(value):
    """Exact: a decimal number where one is, which is where the denominator has only 2s and 5s."""
    if value.denominator == 1:
        return str(value.numerator)
    rest, digits = value.denominator, 0
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        digits += 1
    if rest != 1 or digits > 30:
        return f"{value.numerator}/{value.denominator}"
    scaled = str(abs(value.numerator) * 10**digits // value.denominator).rjust(digits + 1, "0")
    return f"{'-' if value < 0 else ''}{scaled[:-digits]}.{scaled[-digits:]}"
