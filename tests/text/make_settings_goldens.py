# Writes tests/text/goldens/settings.json: what transformers renders of conversations with tools,
# template variables and a fixed day, by the templates of real models as TRL ships them.
#   python tests/text/make_settings_goldens.py
# (needs transformers 5 and TRL 1.16; no model is downloaded)
import datetime
import json
import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers.utils.chat_template_utils as chat_utils
import trl

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
DAY = "2024-02-29"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city — now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, e.g. \"Zürich\""},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}

ASKED = [dict(role="user", content="Is it warm in Zürich?")]
ANSWERED = [*ASKED, dict(role="assistant", content="Ja, 25 °C.")]
CALLED = [
    dict(role="system", content="Be brief."),
    *ASKED,
    dict(
        role="assistant",
        content="",
        tool_calls=[
            {
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": [1]}},
            }
        ],
    ),
    dict(role="tool", name="get_weather", content='{"temperature": 25}'),
    dict(role="assistant", content="Yes."),
]
CHATS = [ASKED, ANSWERED, CALLED]
TOOLS = [None, [], [WEATHER, CLOCK]]
VARIABLES = {
    "qwen3": [{}, {"enable_thinking": False}, {"enable_thinking": True}],
    "gptoss": [{}, {"reasoning_effort": "high", "model_identity": "You are a test."}],
}


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DAY)


def cases(template, variables):
    for messages in CHATS:
        for tools in TOOLS:
            for values in variables:
                # The first chat waits for its answer.
                rendered, _ = chat_utils.render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=template,
                    add_generation_prompt=messages is ASKED,
                    **values,
                )
                yield dict(
                    chat=CHATS.index(messages),
                    tools=TOOLS.index(tools),
                    variables=values,
                    text=rendered[0],
                )


def main():
    chat_utils.datetime = Day
    templates = []
    for name, variables in VARIABLES.items():
        with open(os.path.join(TEMPLATES, name + ".jinja"), encoding="utf-8") as f:
            source = f.read()
        templates.append(dict(name=name, template=source, cases=list(cases(source, variables))))
    golden = dict(day=DAY, chats=CHATS, tools=TOOLS, templates=templates)
    with open(os.path.join(HERE, "goldens", "settings.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
