"""Writes goldens/jinja.json: what Jinja2 renders, in transformers' environment for chat templates.

Usage: make_jinja_goldens.py [random templates] [seed] [output]. Without arguments the file of the
tests is written; more templates and another seed are for fuzz_jinja.py. The templates
that are always there, and the words of the random ones, are in jinja_words.json. Needs transformers
5.23 and jinja2 3.1.6.
"""
import datetime
import json
import pathlib
import random
import signal
import sys

import jinja2
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
WORDS = json.loads((HERE / "jinja_words.json").read_text())
CONTEXTS, FILTERS, METHODS = WORDS["contexts"], WORDS["filters"], WORDS["methods"]


class Maker:
    """Random templates: most expressions are of values that have what is asked of them."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def word(self, kind):
        return self.random.choice(WORDS[kind])

    def chance(self, probability):
        return self.random.random() < probability

    def atom(self, code):
        plain = code.replace("_", "a").isalnum() and not code[0].isdigit()
        return code if plain else f"({code})"

    def filtered(self, kind, code):
        return f"{self.atom(code)}|{self.random.choice(FILTERS[kind])}"

    def called(self, kind, code):
        return f"{self.atom(code)}.{self.random.choice(METHODS[kind])}"

    def sliced(self, code):
        return self.atom(code) + self.word("slices")

    def text(self, depth):
        kind = self.random.randrange(8) if depth > 0 else 0
        depth -= 1
        if kind == 0:
            return self.word("texts")
        if kind == 1:
            return f"({self.any(depth)} ~ {self.any(depth)})"
        if kind == 2:
            return self.filtered("text", self.text(depth))
        if kind == 3:
            return self.called("text", self.text(depth))
        if kind == 4:
            return self.sliced(self.text(depth))

        if kind == 5:
            return f"{self.text(depth)} {self.pick('+', '+', '*', '%')} {self.any(depth)}"
        if kind == 6:
            return f"('{self.word('patterns')}' % {self.word('pattern_values')})"
        named = self.pick("n", "s", "8", "f")
        return f"'{self.word('specs')}'.format({self.any(depth)}, x={named})"

    def number(self, depth):
        kind = self.random.randrange(6) if depth > 0 else 6
        depth -= 1
        if kind <= 2:
            operator = self.pick("+", "-", "*", "/", "//", "%", "**")
            if operator == "**":
                return f"({self.number(0)} ** {self.pick('2', '3', '0', '-1', '0.5')})"
            return f"({self.number(depth)} {operator} {self.number(depth)})"
        if kind == 3:
            return self.filtered("number", self.number(depth))
        if kind == 4:
            return f"-{self.atom(self.number(depth))}"
        if kind == 5:
            return self.called("number", self.number(depth))
        return self.word("numbers")

    def list(self, depth):
        kind = self.random.randrange(6) if depth > 0 else 6
        depth -= 1
        if kind == 0:
            return f"[{', '.join(self.any(depth) for _ in range(self.random.randrange(4)))}]"
        if kind == 1:
            return f"({self.any(depth)}, {self.any(depth)})"
        if kind == 2:
            return self.sliced(self.list(depth))
        if kind == 3:
            other = self.pick(self.list(depth), "2", "l")
            return f"{self.list(depth)} {self.pick('+', '*')} {other}"
        if kind == 4:
            return self.called("list", self.list(depth))
        if kind == 5:
            return self.filtered("list", self.list(depth))
        return self.word("lists")

    def dict(self, depth):
        kind = self.random.randrange(4) if depth > 0 else 4
        depth -= 1
        if kind == 0:
            key = self.pick("1", "'z'", "s", "none")
            return f"{{'k': {self.any(depth)}, {key}: {self.any(depth)}}}"
        if kind == 1:
            return self.filtered("dict", self.dict(depth))
        if kind == 2:
            return self.called("dict", self.dict(depth))
        if kind == 3:
            # Not of a literal: Jinja's compiler takes that slice itself, by another rule.
            return self.sliced(self.pick("d", "v", "p[0]", "p[1].tag"))
        return self.word("dicts")

    def truth(self, depth):
        kind = self.random.randrange(5)
        if kind == 0:
            return f"{self.atom(self.any(depth - 1))} is {self.word('tests')}"
        if kind == 1:
            operator = self.pick("==", "!=", "<", ">=", "in", "not in", "==")
            return f"{self.any(depth - 1)} {operator} {self.any(depth - 1)}"
        if kind == 2 and depth <= 0:
            return "b"
        if kind == 2:
            return f"({self.truth(depth - 1)} {self.pick('and', 'or')} {self.any(depth - 1)})"
        if kind == 3:
            return f"not {self.atom(self.any(depth - 1))}"
        numbers = [self.number(0) for _ in range(3)]
        first, second = self.pick("<", "<=", "==", ">"), self.pick("<", "!=", ">=")
        return f"{numbers[0]} {first} {numbers[1]} {second} {numbers[2]}"

    def any(self, depth):
        kinds = [self.text] * 4 + [self.number] * 3 + [self.list] * 3 + [self.dict] * 2
        kind = self.random.randrange(14)
        if kind < 12:
            return kinds[kind](depth)
        return f"({self.truth(depth)})" if kind == 12 else self.word("others")

    def space(self):
        return self.pick("", "", " ", "\n", "  \n  ", "\n\n", "x", "\t", " y ")

    def tag(self, code):
        left = self.pick("", "", "-", "+" if self.chance(0.2) else "")
        return f"{{%{left} {code} {self.pick('', '', '-', '')}%}}"

    def out(self, code):
        left, right = self.pick("", "", "", "-"), self.pick("", "", "", "-")
        return f"{{{{{left} {code} {right}}}}}"

    def body(self, depth, loop):
        count = self.random.randrange(1, 3)
        return self.space() + "".join(self.statement(depth, loop) + self.space()
                                      for _ in range(count))

    def condition(self, depth, loop):
        code = self.tag(f"if {self.truth(1)}") + self.body(depth, loop)
        if self.chance(0.3):
            code += self.tag(f"elif {self.truth(1)}") + self.body(depth, loop)
        if self.chance(0.5):
            code += self.tag("else") + self.body(depth, loop)
        return code + self.tag("endif")

    def loop(self, depth):
        test = self.pick("", "", f" if {self.truth(1)}", " if i")
        code = self.tag(f"for i in {self.list(1)}{test}") + self.body(depth, True)
        stops = self.chance(0.3)
        if stops:
            stop = self.tag(self.pick("break", "continue"))
            code += self.tag(f"if {self.truth(0)}") + stop + self.tag("endif")
        code += self.body(0, True)
        # Jinja's `else` also follows a loop of which every turn ends early.
        if not stops and self.chance(0.3):
            code += self.tag("else") + "none"
        return code + self.tag("endfor")

    def pairs(self):
        pairs = self.pick("d.items()", "d|items", "d|dictsort", "p|groupby('age')", "y", "l")
        return (self.tag(f"for k, i in {pairs}") + self.out("k") + self.body(0, True)
                + self.tag("endfor"))

    def assignment(self):
        name = self.pick("a", "s", "a, o")
        return self.tag(f"set {name} = {self.any(1)}") + self.out("a") + self.out("s")

    def block(self, depth, loop):
        if self.chance(0.5):
            filters = self.pick("", " | upper", "|trim|length")
            end = self.tag("endset") + self.out("a")
            return self.tag(f"set a{filters}") + self.body(depth, loop) + end
        name = self.pick("upper", "trim", "replace(1, 2)", "indent(3)")
        return self.tag(f"filter {name}") + self.body(depth, loop) + self.tag("endfilter")

    def macro(self):
        given = self.pick("1", "s, 2", "b=n", "a=l", "1, b=2", "", "1, 2, 3", "c=1")
        code = self.tag(f"macro f(a, b={self.any(0)})") + self.out("a") + self.out("b")
        return code + self.out("e") + self.tag("endmacro") + self.out(f"f({given})")

    def caller(self):
        code = self.tag("macro f(a)") + "<" + self.out("caller(a)") + ">" + self.tag("endmacro")
        inside = self.out("o") + self.out(self.any(1))
        return code + self.tag("call(o) f('x')") + inside + self.tag("endcall")

    def space_of_names(self):
        more = self.pick("1", "i", "loop.index")
        code = self.tag(f"set ns = namespace(a={self.any(0)}, k=0)")
        code += self.tag(f"for i in {self.list(0)}") + self.tag(f"set ns.k = ns.k + {more}")
        return code + self.tag("endfor") + self.out("ns.k") + self.out("ns.a")

    def statement(self, depth, loop=False):
        if loop and self.chance(0.35):
            return self.out(f"loop.{self.word('loop')}") + self.out("i")
        kind = self.random.randrange(18) if depth > 0 else 0
        depth -= 1
        if kind <= 5:
            return self.out(self.any(2))
        if kind == 6:
            return self.condition(depth, loop)
        if kind in (7, 8, 9):
            return self.loop(depth)
        if kind == 12:
            return self.block(depth, loop)

        if kind == 16:
            other = f" else {self.any(1)}" if self.chance(0.5) else ""
            return self.out(f"{self.any(1)} if {self.truth(1)}{other}")
        if kind == 17:
            return self.word("statements")
        simple = {10: self.pairs, 11: self.assignment, 13: self.macro, 14: self.caller}
        return simple.get(kind, self.space_of_names)()

    def template(self):
        return self.body(2, False) + self.pick("", "\n", "\n\n")


class Day(datetime.datetime):
    """The day that the templates of the test print."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 23)


class TooLong(BaseException):
    """A template takes seconds: it repeats a text millions of times."""


def stop(number, frame):
    raise TooLong


def rendered(template, context):
    """Jinja2's text, None where it refuses the template or the context; False: it takes long."""
    signal.alarm(5)
    try:
        compiled = chat_template_utils._compile_jinja_template.__wrapped__(template)
        messages = [{"role": "user", "content": "hi"}]
        return compiled.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=False, **context
        )
    except TooLong:
        return False
    except Exception:
        return None
    finally:
        signal.alarm(0)


def comparable(text):
    """Whether a text is one to compare: no long one, and none with an address in memory."""
    marks = (" at 0x", "<class '", "<built-in", "<Macro", "<LoopContext", "<TemplateReference")
    if text is None or text is False:
        return text is None
    return len(text) < 1500 and not any(mark in text for mark in marks)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    output = sys.argv[3] if len(sys.argv) > 3 else HERE / "goldens" / "jinja.json"
    if jinja2.__version__ != "3.1.6":
        sys.exit(f"jinja2 {jinja2.__version__}: expected 3.1.6")
    chat_template_utils.datetime = Day

    signal.signal(signal.SIGALRM, stop)
    maker = Maker(seed)
    chosen = [(template, i) for template in WORDS["written"] for i in (0, 1)]
    while len(chosen) < 2 * len(WORDS["written"]) + count:
        chosen.append((maker.template(), maker.random.randrange(len(CONTEXTS))))
    rows = [[template, i, rendered(template, CONTEXTS[i])] for template, i in chosen]
    rows = [row for row in rows if comparable(row[2])]

    # One row a line, so that a difference shows where it is.
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(CONTEXTS)
    pathlib.Path(output).write_text(f'{{"contexts": {head},\n"rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows, {sum(row[2] is None for row in rows)} of them refused")


if __name__ == "__main__":
    main()
