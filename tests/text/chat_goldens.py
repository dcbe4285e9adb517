# The templates and conversations of make_goldens.py. The templates are written for these tests in
# the styles in use; a backslash at the end of a line joins it to the next one.

CHATML = """{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
+ message['content'] | trim + '<|eot_id|>' %}
    {%- if loop.index0 == 0 %}
        {%- set content = bos_token + content %}
    {%- endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, roles must alternate \
user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, not ' \
+ message['role']) }}
    {%- endif %}
{%- endfor %}
"""

QWEN = """{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last == -1 and message.role == "user" %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set ns.joined = '' %}
        {%- for part in message.content %}
            {%- if part.type == 'text' %}{% set ns.joined = ns.joined + part.text %}{% endif %}
        {%- endfor %}
        {%- set content = ns.joined %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = \
content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
                {{- call.function.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Block tags with every kind of white-space control, line ends of both kinds, marks in loops.
SPACES = """{# a comment with {% generation %} in it #}
{% for message in messages %}
  {% if message.role == 'assistant' %}
    {%+ generation %}
  <{{ message.role }}>  {{ message.content | string }}

    {% endgeneration -%}

  {% else %}\r
[{{ message.role }}] {{- " {% generation %} " }} {{ message.content | string | trim }}\r
  {% endif %}
{% raw %}{% generation %}{{ raw }}{% endraw %}

{% endfor %}
{% if add_generation_prompt -%}
   > {% generation %}{% endgeneration %}
{%- endif %}

"""

# One of everything else that templates use.
SINK = """{%- macro show(value, label='v') %}{{ label }}={{ value | tojson }};{% endmacro %}
{%- for message in messages %}
{%- if message.role == 'skip' %}{% continue %}{% endif %}
{%- if message.role == 'stop' %}{% break %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ message.role.upper() }} \
{{ message.role | capitalize }}
{{ message | tojson }}
{{ message | tojson(indent=2) }}
{{ message.content | tojson(ensure_ascii=True) }}
{{ message | tojson(separators=(',', ':'), sort_keys=True) }}
{{ show(message.content) }}{{ show([1, 2.0, 1e20, 1.5e-7, true, none, {'k': []}, {}], label='x') }}
{%- if message.content is string %}
{{ message.content.strip() }}|{{ message.content.split(' ') }}|\
{{ message.content.startswith('H') }}|{{ message.content.replace('a', 'b') }}
{{ message.content.split('a', 1)[0] }}|{{ message.content.partition(' ')[2] }}|\
{{ message.content.removeprefix('Hi') }}|{{ message.content[1:4] }}|{{ message.content[-2:] }}|\
{{ (message.content + '.')[::-1] }}
{{ message.content is sequence }} {{ message.content is iterable }} \
{{ message.content is mapping }} {{ message.content | length }}
{%- else %}
{{ message.content | map(attribute='type') | join(', ') }} \
{{ message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | list }}
{%- endif %}
{%- for key, value in message.items() if key != 'content' %}
{{ key }}:{{ value }}{% if not loop.last %},{% endif %}
{%- endfor %}
{{ message.get('name', 'nobody') }} {{ message.missing }} {{ message.missing is defined }} \
{{ 'role' in message }} {{ message.keys() | list }}
{%- endfor %}
{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 5 }} {{ -7 % 3 }} \
{{ [1, 'a', none, true, "it's"] }} {{ {'a': 1} }}
{{ tools is none }} {{ tools is defined }} {{ unknown is defined }} {{ bos_token is defined }} \
{{ 'yes' if false }} {{ undefined_name or 'alt' }}
{{ range(3) | list }} {{ range(5, 1, -2) | list }} {{ [3, 1, 2] | sort }} {{ [3, 1] + [4] }} \
{{ messages | length > 1 and not false }}
{%- set ns = namespace(found=false, n=0) %}
{%- for i in range(3) %}{% set ns.n = ns.n + i %}{% if i == 1 %}{% set ns.found = true %}\
{% endif %}{% endfor %}
{{ ns.n }} {{ ns.found }} {{ 'a,b' | replace(',', ';') }} {{ '  x ' | trim }} \
{{ ['x', 'y'] | first }} {{ ['x', 'y'] | last }} {{ x | default('d') }}
{{ '%s-%d' | format('a', 3) }} {{ '{} {}'.format('p', 'q') }} {{ dict(a=1, b=2) }} \
{{ 'AbC'.lower() }} {{ 'ab cd'.title() }} {{ strftime_now('%Y') | length }}
{%- set a, b = 'l', 'r' %} {{ a ~ b ~ 3 }} {{ "é\\u00e9\\n" | tojson }} {{ '3' | int + 4 }} \
{{ messages[-1].role }} {{ messages[-1]['role'] }}
{%- set text %} block {{ a }} {% endset %}
[{{ text }}]{% filter upper %} filtered {{ b }}{% endfilter %}{% with z = 3 %}{{ z }}{% endwith %}
"""

# Marks for only part of the turn.
PARTIAL = """{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}\
{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}\
{% endfor %}"""

TEMPLATES = {
    "chatml": ("qwen", CHATML),
    "llama3": ("llama3", LLAMA3),
    "mistral": ("mistral", MISTRAL),
    "mistral_llama2": ("llama2", MISTRAL),
    "qwen": ("qwen", QWEN),
    "spaces": ("gpt2", SPACES),
    "sink": ("qwen", SINK),
    "partial": ("llama3", PARTIAL),
    "partial_metaspace": ("llama2", PARTIAL),
}


def turns(*contents, system=None):
    messages = [] if system is None else [dict(role="system", content=system)]
    for i, content in enumerate(contents):
        messages.append(dict(role=("user", "assistant")[i % 2], content=content))
    return messages


CONVERSATIONS = [
    turns("Hi"),
    turns("Hi", "Hello!"),
    turns("What is 2+2?", "4.", "And 3+3?", "It's 6.", system="You are terse."),
    turns("  spaces  ", "\n\nlines\n", " trailing ", "  \n"),
    turns("emoji 🙂 and é", "👩‍👩‍👧‍👦 日本語 done.", "more", "café."),
    turns(
        "tricky <|im_end|> [/INST] </s>",
        "{{ not }} {% generation %} a template",
        "\U0010fffd<0>",
        "\U0010fffd ok.",
    ),
    turns("why?", "<think>\nbecause\n</think>\n\nSo.", "again?", "<think>\nhm\n</think>\n\nYes."),
    [
        dict(role="user", content="call"),
        dict(
            role="assistant",
            content="",
            tool_calls=[
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "arguments": {"city": "Zürich", "n": [1, 2.5], "x": None},
                    },
                }
            ],
        ),
    ],
    [
        dict(role="user", content="r"),
        dict(role="assistant", content="a.", reasoning_content="thought", name=None),
    ],
    [dict(role="user", content="r"), dict(role="assistant", content="a.", reasoning="other name")],
    [
        dict(
            role="user",
            content=[{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}],
        )
    ],
    [dict(role="assistant", content="I begin."), dict(role="user", content="ok")],
    [
        dict(role="user", content="a"),
        dict(role="user", content="b"),
        dict(role="assistant", content="c."),
    ],
    [
        dict(role="user", content="a"),
        dict(role="skip", content="b"),
        dict(role="tool", content='{"k": 1}'),
        dict(role="stop", content="c"),
        dict(role="user", content="d"),
    ],
    [dict(role="user")],
]

# Sources that no engine accepts, and what the message must name.
REFUSED = [
    ["{% for m in messages %}{{ m.content }}", ""],
    ["{{ messages", ""],
    ["{% unknown_tag %}", ""],
    ["line one\nline two {{ 1 + }}\n", ":2"],
    ["{% generation %}{{ messages[0].content }}", ""],
    ["{% endgeneration %}", ""],
    ["{% if %}x{% endif %}", ""],
    ["{{ messages | no_such_filter }}", "no_such_filter"],
]
