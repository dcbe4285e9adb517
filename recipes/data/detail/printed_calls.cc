#include "recipes/data/detail/printed_calls.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace retort::data::detail {
namespace {

bool has_calls(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const Json& message) { return message.contains("tool_calls"); });
}

// The names of all calls, in order, for others to be put in their place.
std::vector<Json*> called_names(Json& messages) {
  std::vector<Json*> names;
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      const bool is_wrapped = call.is_object() && call.contains("function");
      Json& function = is_wrapped ? call["function"] : call;
      if (!function.is_object()) continue;
      const auto name = function.find("name");
      if (name != function.end() && name->is_string()) names.push_back(&*name);
    }
  }
  return names;
}

// Letters and digits alone: no template and no JSON writes them in another way. None begins
// another.
std::string sentinel(size_t index) {
  return "retortsentinelofcall" + std::to_string(index) + "end";
}

[[noreturn]] void refuse_call(const std::string& name) {
  bad_row("the chat template leaves out the call of " + Json(name).dump() +
          ": it has no place for such a call; give data.chat_template one that has");
}

}  // namespace

void expect_calls(const Json& messages, const models::ChatTemplate& chat,
                  const std::string& variables, std::string_view text) {
  if (!has_calls(messages)) return;

  // With sentinels in place of the names, the conversation holds what else may bring them into the
  // text.
  Json renamed = messages;
  std::vector<std::string> names;
  for (Json* name : called_names(renamed)) {
    names.push_back(name->get<std::string>());
    *name = sentinel(names.size() - 1);
  }
  const std::string others = renamed.dump();

  // A name that is not there was not printed, and one that nothing else brings was.
  bool are_printed = true;
  for (const std::string& name : names) {
    if (text.find(name) == std::string_view::npos) refuse_call(name);
    const auto holds = [&](const std::string& other) {
      return other.find(name) != std::string::npos;
    };
    const bool is_of_one = std::count_if(names.begin(), names.end(), holds) == 1;
    are_printed =
        are_printed && is_of_one && !holds(others) && !holds(variables) && !chat.mentions(name);
  }
  if (are_printed) return;

  // Where a name says nothing, the sentinels do.
  std::string marked;
  try {
    marked = chat.render(others, /*add_generation_prompt=*/false, variables).text;
  } catch (const Error&) {
    return;  // a template that refuses names which it does not know reads the calls
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (marked.find(sentinel(i)) == std::string::npos) refuse_call(names[i]);
}

}  // namespace retort::data::detail
