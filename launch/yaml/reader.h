// Reads a YAML tree into option structs through their fields(): unknown keys, wrong types and
// values out of range are kInvalidArgument "file:line: path: what, what was expected, nearest known
// name".
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/free_block.h"
#include "base/json_block.h"
#include "base/named_list.h"
#include "base/options.h"
#include "base/text_or_list.h"
#include "base/units.h"
#include "launch/yaml/tree.h"

namespace retort::launch {

// The scalar conversions; each throws kInvalidArgument (without a place) saying what was expected.
void read_scalar(const YamlNode& node, bool& value);
void read_scalar(const YamlNode& node, int64_t& value);
void read_scalar(const YamlNode& node, double& value);
void read_scalar(const YamlNode& node, std::string& value);
void read_scalar(const YamlNode& node, Duration& value);
void read_scalar(const YamlNode& node, ShortDuration& value);
void read_scalar(const YamlNode& node, ByteSize& value);
// A scalar or a list of them.
void read_scalar(const YamlNode& node, TextOrList& value);
// A FreeBlock and a JsonBlock are no scalars, but any block of keys.
void read_scalar(const YamlNode& node, FreeBlock& value);
void read_scalar(const YamlNode& node, JsonBlock& value);

// A place in the tree and its path from the root ("train.max_steps", "data.train[0].path").
class YamlReader {
 public:
  // Says what a name that is not known is, where it is one of a later version, of another program
  // or of another block: ("train.lr") -> "unknown key; it is train.learning_rate", else "". Called
  // with
  // "path" for keys and "path=value" for choices; list indices are left out of paths.
  using LaterNames = std::function<std::string(std::string_view)>;

  YamlReader(const YamlNode& node, std::string path, const LaterNames* later)
      : node_(node), path_(std::move(path)), later_(later) {}

  // The value of this node as a T.
  template <class T>
  void read(T& value) const;

  // kInvalidArgument at this node.
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  // Reads the fields of one struct: the visitor that fields() gets.
  class Fields;

  template <class T>
  void read_block(T& value) const;  // an option struct
  template <class T>
  void read_choice(T& value) const;  // one of several names; throws without a place
  template <class F>
  void guarded(F&& convert) const;
  YamlReader child(const std::string& key, const YamlNode& node) const;
  YamlReader item(size_t index, const YamlNode& node) const;
  void expect(YamlNode::Kind kind) const;
  // Errors from validate(): names the line of the key that the message is about.
  [[noreturn]] void refuse_invalid(const Error& error) const;
  void refuse_unknown(const std::vector<std::string_view>& known) const;
  // Refuses the first value, here or below, that readers of YAML take for different things.
  void refuse_ambiguous_values() const;
  std::string later(const std::string& suffix) const;

  const YamlNode& node_;
  std::string path_;
  const LaterNames* later_;
};

namespace detail {
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsMap = false;
template <class T>
inline constexpr bool kIsMap<std::map<std::string, T>> = true;
template <class T>
inline constexpr bool kIsMap<NamedList<T>> = true;

struct AnyVisitor {
  template <class T>
  void operator()(const char*, T&, const char*) {}
};
template <class T>
concept OptionStruct = requires(T value, AnyVisitor visitor) {
  value.fields(visitor);
};
template <class T>
concept Validated = requires(const T value) {
  value.validate();
};
}  // namespace detail

class YamlReader::Fields {
 public:
  explicit Fields(const YamlReader& reader) : reader_(reader) {}
  template <class T>
  void operator()(const char* name, T& value, const char*) {
    known_.push_back(name);
    if (const auto* entry = reader_.node_.find(name)) reader_.child(name, entry->value).read(value);
  }
  const std::vector<std::string_view>& known() const { return known_; }

 private:
  const YamlReader& reader_;
  std::vector<std::string_view> known_;
};

template <class F>
void YamlReader::guarded(F&& convert) const {
  try {
    convert();
  } catch (const Error& e) {
    refuse(e.message());
  }
}

template <class T>
void YamlReader::read(T& value) const {
  if constexpr (detail::kIsOptional<T>) {
    // An empty value, `key:`, takes away a default.
    if (node_.kind == YamlNode::Kind::kNull) {
      value.reset();
    } else {
      read(value.emplace());
    }
  } else if constexpr (detail::kIsVector<T>) {
    // `loss_type: sigmoid` is a list of one choice
    if constexpr (std::is_enum_v<typename T::value_type>) {
      if (node_.kind == YamlNode::Kind::kScalar) {
        value.clear();
        return read(value.emplace_back());
      }
    }

    expect(YamlNode::Kind::kList);
    value.clear();
    for (size_t i = 0; i < node_.items.size(); ++i)
      item(i, node_.items[i]).read(value.emplace_back());
  } else if constexpr (detail::kIsMap<T>) {
    expect(YamlNode::Kind::kMap);
    value.clear();
    for (const auto& entry : node_.entries)
      child(entry.key, entry.value).read(value[entry.key]);
  } else if constexpr (detail::OptionStruct<T>) {
    // It says its keys itself, where the types above have none.
    read_block(value);
  } else if constexpr (std::is_enum_v<T> || NamedChoice<T>) {
    guarded([&] { read_choice(value); });
  } else {
    // A scalar, or a block whose keys nobody here knows.
    if constexpr (std::is_same_v<T, JsonBlock>) refuse_ambiguous_values();
    guarded([&] { read_scalar(node_, value); });
  }
}

template <class T>
void YamlReader::read_block(T& value) const {
  expect(YamlNode::Kind::kMap);

  // An unknown key is reported before the value of a known one: a misspelt key is the likelier
  // cause.
  T probe{};
  std::vector<std::string_view> known;
  auto collect = [&known](const char* name, auto&, const char*) { known.push_back(name); };
  probe.fields(collect);
  refuse_unknown(known);

  Fields visitor(*this);
  value.fields(visitor);
  if constexpr (detail::Validated<T>) {
    try {
      value.validate();
    } catch (const Error& e) {
      refuse_invalid(e);
    }
  }
}

template <class T>
void YamlReader::read_choice(T& value) const {
  std::string text;
  read_scalar(node_, text);
  const std::string is_later = later("=" + text);
  if (!is_later.empty()) throw Error(ErrorCode::kInvalidArgument, is_later);

  if constexpr (NamedChoice<T>) {
    check_choice(text, T::choices());
    value.text = text;
  } else {
    value = parse_enum<T>(text);
  }
}

}  // namespace retort::launch
