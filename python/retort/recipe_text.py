"""Reads recipe.resolved.yaml, without a library.

It is YAML of a few forms, those that launch/yaml/writer.h writes: blocks of `key: value`, each
level two spaces further in; lists whose items are lines `- value`; and values on one line, which
are plain words, JSON strings, or lists and maps of such in brackets and braces.
"""
import json
import re

_LINE = re.compile(r'( *)(?:- ()|("(?:[^"\\]|\\.)*"|[^\s":]+):(?: |$))(.*)')
_WORD = re.compile(r"[^\s,\[\]{}:]+(?::[^\s,\[\]{}]+)*")
_INTEGER = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_NAMES = {"null": None, "true": True, "false": False}


class _Line:
    """`key: value` or `- value`; the value is "" where a block follows."""

    def __init__(self, number, text):
        match = _LINE.fullmatch(text)
        if not match:
            raise ValueError(f"line {number}: expected `key: value`, got {text!r}")
        self.number = number
        self.indent = len(match[1])
        self.is_item = match[2] is not None
        self.key = None if self.is_item else _of_word(match[3])
        self.text = match[4]


def parse_recipe(text):
    """The recipe as dicts, lists, str, int, float, bool and None. ValueError with the line."""
    lines = [_Line(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    block, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"line {rest[0].number}: indented further than the block it follows")
    return block


def _block(lines, indent):
    """The block that begins here at this indentation, and the lines after it."""
    is_list = bool(lines) and lines[0].is_item
    block = [] if is_list else {}
    while lines and lines[0].indent == indent and lines[0].is_item == is_list:
        line, lines = lines[0], lines[1:]
        if line.text:
            value = _value_of(line)
        elif lines and lines[0].indent > indent:
            value, lines = _block(lines, lines[0].indent)
        else:
            value = {}  # a struct without fields
        if is_list:
            block.append(value)
        else:
            block[line.key] = value
    return block, lines


def _value_of(line):
    try:
        value, end = _flow(line.text, 0)
    except ValueError as error:
        raise ValueError(f"line {line.number}: {error}") from None
    if line.text[end:].strip():
        raise ValueError(f"line {line.number}: text after the value: {line.text[end:]!r}")
    return value


def _of_word(word):
    if word.startswith('"'):
        return _of_string(json.loads(word))
    if word in _NAMES:
        return _NAMES[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    return float(word) if _NUMBER.fullmatch(word) else word


def _of_string(text):
    # A recipe's ${NAME} is a variable of the environment; the writer doubles the $ of others.
    return text.replace("$${", "${")


def _flow(text, at):
    """The value that begins at a place of a line, and the place after it."""
    if text[at : at + 1] == '"':
        value, end = json.JSONDecoder().raw_decode(text, at)
        return _of_string(value), end
    if text[at : at + 1] in ("[", "{"):
        return _brackets(text, at)
    match = _WORD.match(text, at)
    if not match:
        raise ValueError(f"expected a value, got {text[at:]!r}")
    return _of_word(match[0]), match.end()


def _brackets(text, at):
    is_list = text[at] == "["
    end_mark = "]" if is_list else "}"
    items, keys = [], []
    at += 1
    while True:
        while text[at : at + 1] in (" ", ","):
            at += 1
        if text[at : at + 1] == end_mark:
            return (items if is_list else dict(zip(keys, items))), at + 1
        if not is_list:
            key, at = _flow(text, at)
            keys.append(key)
            if text[at : at + 1] != ":":
                raise ValueError(f"expected a colon at {text[at:]!r}")
            at += 1
            while text[at : at + 1] == " ":
                at += 1
        value, at = _flow(text, at)
        items.append(value)
