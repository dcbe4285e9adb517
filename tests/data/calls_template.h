// A chat template in the golden models' words that knows tools and their calls.
#pragma once

namespace retort::test {

// A conversation of words with hermes' calls, which an untrained model never says. <eos> is 63.
inline constexpr const char* kCallsTemplate =
    "{% if tools %}w59 <tool_call> {% endif %}"
    "{% for m in messages %}w60 {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %} <eos> w61 {% endfor %}"
    "{% if add_generation_prompt %}w60 {% endif %}";

}  // namespace retort::test
