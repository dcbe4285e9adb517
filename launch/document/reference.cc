#include "launch/document/reference.h"

#include <deque>
#include <functional>
#include <memory>

#include "launch/yaml/writer.h"
#include "recipes/document/recipe.h"

namespace retort::launch {
namespace {

// The words for what people write for a T.
template <class T>
std::string type_text() {
  if constexpr (detail::kIsOptional<T>) {
    // A type that holds others is named after them.
    return type_text<typename T::value_type>();
  } else if constexpr (detail::kIsVector<T>) {
    return "list of " + type_text<typename T::value_type>();
  } else if constexpr (detail::kIsMap<T>) {
    return "name -> " + type_text<typename T::mapped_type>();
  } else if constexpr (detail::OptionStruct<T>) {
    return "block";
  } else if constexpr (NamedChoice<T>) {
    // A choice is all of its names, with bars that do not end the cell.
    std::string text;
    for (const std::string_view name : T::choices())
      text += (text.empty() ? "" : " \\| ") + ("`" + std::string(name) + "`");
    return text;
  } else if constexpr (std::is_enum_v<T>) {
    std::string text;
    for (const auto& [name, value] : EnumNames<T>::values)
      text += (text.empty() ? "" : " \\| ") + ("`" + std::string(name) + "`");
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    // A scalar is called by what people write, not by its C++ type.
    return "`true` \\| `false`";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_same_v<T, Duration>) {
    return "duration";

    // These are written with a unit.
  } else if constexpr (std::is_same_v<T, ShortDuration>) {
    return "short duration";
  } else if constexpr (std::is_same_v<T, ByteSize>) {
    return "size";
  } else if constexpr (std::is_same_v<T, TextOrList>) {
    return "text, or list of text";
  } else if constexpr (std::is_same_v<T, FreeBlock>) {
    // Keys that are not ours.
    return "block of another program's keys";
  } else if constexpr (std::is_same_v<T, JsonBlock>) {
    return "block of any keys and values";
  } else {
    static_assert(std::is_same_v<T, std::string>);
    return "text";
  }
}

std::string escape_cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.insert(at, 1, '\\');
  return text;
}

// Writes one table per struct; structs inside are queued under their path.
class Reference {
 public:
  template <class T>
  void block(const std::string& path) {
    pending_.push_back([this, path] {
      text_ += "\n## " + (path.empty() ? "The recipe" : "`" + path + "`") +
               "\n\n| key | value | default | meaning |\n|---|---|---|---|\n";
      T defaults{};
      auto visit = [&](const char* name, auto& value, const char* meaning) {
        row(path, name, value, meaning);
      };
      defaults.fields(visit);
    });
  }

  std::string finish() {
    for (; !pending_.empty(); pending_.pop_front())
      pending_.front()();
    return text_;
  }

 private:
  template <class T>
  void row(const std::string& parent, const std::string& name, const T& value,
           const std::string& meaning) {
    const std::string path = parent.empty() ? name : parent + "." + name;
    std::string standard = "`" + yaml_flow(value) + "`";
    if constexpr (detail::OptionStruct<T>) standard = "";
    // A text that may be left out says in its meaning what "empty" does.
    if constexpr (std::is_same_v<T, std::string>)
      if (value.empty()) standard = meaning.find("empty:") == std::string::npos ? "required" : "";
    if constexpr (detail::kIsOptional<T>) standard = "";
    if (path == "recipe") standard = "required";
    text_ += "| `" + name + "` | " + type_text<T>() + " | " + standard + " | " +
             escape_cell(meaning) + " |\n";
    queue<T>(path);
  }

  template <class T>
  void queue(const std::string& path) {
    if constexpr (detail::kIsOptional<T>) {
      queue<typename T::value_type>(path);
    } else if constexpr (detail::kIsVector<T>) {
      queue<typename T::value_type>(path + "[]");
    } else if constexpr (detail::kIsMap<T>) {
      queue<typename T::mapped_type>(path + ".<name>");
    } else if constexpr (detail::OptionStruct<T>) {
      block<T>(path);
    }
  }

  std::deque<std::function<void()>> pending_;
  std::string text_;
};

constexpr const char* kIntroduction = R"(# The recipe

Generated from the option structs by `recipe_reference_markdown()`; a test compares this file with
the program. To write it anew: `RETORT_UPDATE_DOCS=1 ctest -R recipe_test`.

- A recipe is one YAML document, in block or flow style. Unknown keys, keys that stand twice,
  wrong types and contradictions are errors that name file and line, before any process starts.
- An alias `*name` stands for what `&name` was written before, and `<<: *name` (or a list of them)
  takes over the keys of a block that this one does not have itself, whole values at a time. Both
  are copies: an override of the one leaves the other as it is.
- A recipe has at most 100,000 values, 1 MiB of text and 32 levels, where each alias and variable
  counts what it stands for, and its file 8 MiB. A pipe may give it (`/dev/stdin`, a shell's
  `<(...)`); what else is no regular file is refused, here and wherever a file is named.
- Durations carry a unit (`250ms`, `120s`, `5m`, `2h`; short ones `20us`, `1ms`), sizes too
  (`512KiB`, `64MiB`, `2GiB`; a bare number is bytes).
- A path may begin with `~/`, the home folder of whoever starts the run (not in pods).
- `${NAME}` in a value is the environment variable NAME, which must be set; `$${` is a literal
  `${`. In flow style it must stand in quotes.
- `key.path=value` after the recipe on the command line overrides; the value is YAML, items of
  lists are counted from 0: `retort launch recipe.yaml train.max_steps=20
  data.train.0.path=small.jsonl`. `null` takes an optional value away.
- Relative paths are relative to the working directory of `retort`, not to the recipe.
- A field that the rest of the recipe makes pointless must keep its default: anything else is
  refused, not ignored.
- The resolved recipe, with every field, is written into the run's folder as
  `recipe.resolved.yaml`; values of `roles.<name>.env`, which may be keys, stand beside it in
  `roles.env`, which only its owner reads.
)";

}  // namespace

std::string recipe_reference_markdown() {
  Reference reference;
  reference.block<recipes::Recipe>("");
  return kIntroduction + reference.finish();
}

}  // namespace retort::launch
