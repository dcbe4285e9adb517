#include "launch/yaml/tree.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "launch/yaml/yaml_limits.h"

namespace retort::launch {
namespace {

[[noreturn]] void refuse(const YamlPlace& place, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, place.prefix() + message);
}

// Counts the text of a tree.
class TextCount {
 public:
  void add(size_t bytes, const YamlPlace& place) {
    bytes_ += bytes;
    if (bytes_ > kMaxYamlBytes)
      refuse(place, "more than " + std::to_string(kMaxYamlBytes) +
                        " bytes of text, where each alias and variable counts what it stands for");
  }

 private:
  uint64_t bytes_ = 0;
};

// `text` with ${NAME} replaced; tells whether anything was.
std::pair<std::string, bool> expand_environment(const std::string& text, const YamlPlace& place,
                                                TextCount& count) {
  std::string out;
  bool expanded = false;
  count.add(text.size(), place);
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 3, "$${") == 0) {
      out += "${";
      i += 3;
    } else if (text.compare(i, 2, "${") == 0) {
      const size_t end = text.find('}', i);
      if (end == std::string::npos)
        refuse(place, "'" + text + "': ${ without }; write ${NAME}, or $${ for the two characters");
      const std::string name = text.substr(i + 2, end - i - 2);
      const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
      if (!value)
        refuse(place,
               "the environment variable '" + name + "' is not set; export it or write the value");
      out += value;
      count.add(std::string_view(value).size(), place);
      expanded = true;
      i = end + 1;
    } else {
      out += text[i++];
    }
  }
  return {out, expanded};
}

class Converter {
 public:
  // `has_lines` is false for the command line, whose values stand in no line.
  explicit Converter(std::string source, bool has_lines)
      : source_(std::move(source)), has_lines_(has_lines) {}

  YamlPlace place_of(const YAML::Mark& mark, int64_t fallback) const {
    return {.source = source_, .line = !has_lines_ ? 0 : mark.is_null() ? fallback : mark.line + 1};
  }

  YamlNode convert(const YAML::Node& from, int64_t fallback_line, int depth) {
    YamlNode node;
    node.place = place_of(from.Mark(), fallback_line);

    // An alias is converted anew wherever it stands, so a small file may grow large: depth, values
    // and text are bounded.
    if (depth > kMaxYamlDepth)
      refuse(node.place, "nested deeper than " + std::to_string(kMaxYamlDepth) + " levels");
    if (++num_nodes_ > kMaxYamlNodes)
      refuse(node.place, "more than " + std::to_string(kMaxYamlNodes) + " values");
    switch (from.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null: break;
      case YAML::NodeType::Scalar: convert_scalar(from, node); break;
      case YAML::NodeType::Sequence:
        node.kind = YamlNode::Kind::kList;
        for (const auto& item : from)
          node.items.push_back(convert(item, node.place.line, depth + 1));
        break;
      case YAML::NodeType::Map: convert_map(from, node, depth); break;
    }
    return node;
  }

 private:
  void convert_scalar(const YAML::Node& from, YamlNode& node) {
    node.kind = YamlNode::Kind::kScalar;
    const auto [text, expanded] = expand_environment(from.Scalar(), node.place, count_);
    node.scalar = text;
    // "${STEPS}" has to stand in quotes in flow style; what it holds may be a number.
    node.quoted = from.Tag() == "!" && !expanded;
  }

  void convert_map(const YAML::Node& from, YamlNode& node, int depth) {
    node.kind = YamlNode::Kind::kMap;
    std::optional<std::vector<YamlNode>> merged;
    std::map<std::string, int64_t> lines;  // of the keys
    for (const auto& pair : from) {
      const YamlPlace place = place_of(pair.first.Mark(), node.place.line);
      if (!pair.first.IsScalar()) refuse(place, "a key must be plain text");
      if (is_merge_key(pair.first)) {
        if (merged)
          refuse(place, "'<<' stands here twice; merge several blocks by a list: <<: [*a, *b]");
        merged = blocks_to_merge(pair.second, place, depth);
        continue;
      }
      YamlNode::Entry entry{pair.first.Scalar(), place, {}};
      count_.add(entry.key.size(), place);
      // The parser lets a key pass that stands twice, and one of its values would be lost.
      const auto [first, is_new] = lines.emplace(entry.key, place.line);
      if (!is_new)
        refuse(place, "'" + entry.key + "' stands here twice; first in line " +
                          std::to_string(first->second));
      entry.value = convert(pair.second, place.line, depth + 1);
      if (entry.value.kind == YamlNode::Kind::kNull) entry.value.place = place;
      node.entries.push_back(std::move(entry));
    }
    // Merged keys come last, since the block's own win wherever its `<<` stands.
    if (merged) merge(std::move(*merged), lines, node);
  }

  // In quotes it is a key like any other.
  static bool is_merge_key(const YAML::Node& key) {
    return key.Scalar() == "<<" && key.Tag() != "!";
  }

  // The blocks that stand behind a `<<` at `place`; their own places say that they were merged
  // there.
  std::vector<YamlNode> blocks_to_merge(const YAML::Node& from, const YamlPlace& place, int depth) {
    YamlNode value = convert(from, place.line, depth + 1);
    std::vector<YamlNode> blocks;
    if (value.kind == YamlNode::Kind::kList) {
      blocks = std::move(value.items);
    } else {
      blocks.push_back(std::move(value));
    }

    for (YamlNode& block : blocks) {
      if (block.kind != YamlNode::Kind::kMap)
        refuse(place, "<< merges a block of keys or a list of them, got " +
                          std::string(yaml_kind_name(block.kind)) +
                          "; write <<: *name behind a block that begins with &name");
      mark_merged(block, place.line);
    }
    return blocks;
  }

  static void mark_merged(YamlNode& node, int64_t line) {
    node.place.merged_in = line;
    for (YamlNode& item : node.items)
      mark_merged(item, line);
    for (YamlNode::Entry& entry : node.entries) {
      entry.place.merged_in = line;
      mark_merged(entry.value, line);
    }
  }

  // A key that the block has itself, or from a block before, stays as it is.
  static void merge(std::vector<YamlNode> blocks, std::map<std::string, int64_t>& lines,
                    YamlNode& node) {
    for (YamlNode& block : blocks)
      for (YamlNode::Entry& entry : block.entries)
        if (lines.emplace(entry.key, entry.place.line).second)
          node.entries.push_back(std::move(entry));
  }

  std::string source_;
  bool has_lines_;
  int64_t num_nodes_ = 0;
  TextCount count_;
};

// Says what a parser's complaint about line `line` (from 0) is likely to be about, because yaml-cpp
// calls nearly everything an illegal map value.
std::string likely_cause(std::string_view text, int line) {
  for (; line > 0 && !text.empty(); --line)
    text.remove_prefix(std::min(text.size(), text.find('\n')) + (text.find('\n') < text.size()));
  const std::string_view indentation = text.substr(0, text.find_first_not_of(" \t"));
  if (indentation.find('\t') != std::string_view::npos)
    return "; the line is indented by a tab: write spaces";
  return "; is the line indented as the others of its block are, and is there a space behind each "
         "colon?";
}

// Values reach other processes as JSON, which holds UTF-8 alone.
void refuse_other_than_utf8(std::string_view text, const std::string& source, bool has_lines) {
  // The marks by which the parser knows UTF-16 and UTF-32, which it reads too.
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return;
  int64_t line = 1;
  for (; !text.empty(); ++line) {
    const std::string_view one = text.substr(0, text.find('\n'));
    if (!is_utf8(one))
      refuse({.source = source, .line = has_lines ? line : 0},
             "'" + printable(one.substr(0, 80)) +
                 "' has bytes that are no UTF-8; save the recipe as UTF-8, and rename such paths");
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
}

YamlNode parse(std::string_view text, const std::string& source, bool has_lines) {
  if (text.size() > kMaxYamlTextBytes)
    refuse({.source = source}, "has " + std::to_string(text.size()) +
                                   " bytes; expected a recipe of at most " +
                                   std::to_string(kMaxYamlTextBytes));
  refuse_other_than_utf8(text, source, has_lines);
  Converter converter(source, has_lines);
  try {
    // Too many values are found before the parser makes a tree of them.
    if (const int line = line_of_too_many_nodes(text); line >= 0)
      refuse({.source = source, .line = has_lines ? line + 1 : 0},
             "more than " + std::to_string(kMaxYamlNodes) + " values");
    const auto documents = YAML::LoadAll(std::string(text));
    if (documents.empty()) return converter.convert(YAML::Node(), 1, 0);
    if (documents.size() > 1)
      refuse(converter.place_of(documents[1].Mark(), 1),
             "a second YAML document; expected one document in the file");
    return converter.convert(documents.front(), 1, 0);
  } catch (const YAML::Exception& e) {
    refuse(converter.place_of(e.mark, 1),
           "not valid YAML: " + e.msg + (has_lines ? likely_cause(text, e.mark.line) : ""));
  }
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> keys;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    keys.emplace_back(path.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    if (dot == std::string_view::npos) return keys;
    begin = dot + 1;
  }
}

// The child of `node` named `key`, made if it is missing. `path` is that of `node`.
YamlNode& child_of(YamlNode& node, const std::string& key, const std::string& path,
                   const YamlPlace& place) {
  if (node.kind == YamlNode::Kind::kList) {
    size_t index = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
    if (error != std::errc() || end != key.data() + key.size() || index >= node.items.size())
      refuse(place, "'" + key + "' is not an item of the list " + path + ", which has " +
                        std::to_string(node.items.size()) + " (counted from 0)");
    return node.items[index];
  }
  if (node.kind == YamlNode::Kind::kNull) {
    node.kind = YamlNode::Kind::kMap;
    node.place = place;
  }
  if (node.kind != YamlNode::Kind::kMap)
    refuse(place, path + " is the value '" + node.scalar + "', it has no key '" + key + "'");
  if (auto* entry = node.find(key)) return entry->value;
  node.entries.push_back({key, place, {}});
  node.entries.back().value.place = place;
  return node.entries.back().value;
}

// Takes the key, or the item of a list, out of what holds it; it must be there.
void remove_child(YamlNode& parent, const std::string& key) {
  if (parent.kind == YamlNode::Kind::kList)
    parent.items.erase(parent.items.begin() + std::stol(key));
  else
    std::erase_if(parent.entries, [&](const YamlNode::Entry& entry) { return entry.key == key; });
}

}  // namespace

std::string YamlPlace::prefix() const {
  std::string text = source;
  if (line > 0) text += ":" + std::to_string(line);
  if (merged_in > 0) text += " (merged in line " + std::to_string(merged_in) + ")";
  return text + ": ";
}

const YamlNode::Entry* YamlNode::find(std::string_view key) const {
  for (const auto& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

YamlNode::Entry* YamlNode::find(std::string_view key) {
  return const_cast<Entry*>(static_cast<const YamlNode*>(this)->find(key));
}

std::string_view yaml_kind_name(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kScalar: return "a single value";
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a block of keys";
  }
  return "?";
}

YamlNode parse_yaml(std::string_view text, const std::string& source) {
  return parse(text, source, true);
}

void apply_override(YamlNode& root, std::string_view assignment) {
  const YamlPlace place{"command line", 0};
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    refuse(place, "'" + std::string(assignment) + "' is not key.path=value");
  YamlNode* node = &root;
  YamlNode* parent = nullptr;
  std::string path;
  const std::vector<std::string> keys = split_path(assignment.substr(0, equals));
  for (const std::string& key : keys) {
    if (key.empty())
      refuse(place, "'" + std::string(assignment) + "' has an empty key; write key.path=value");
    parent = node;
    node = &child_of(*node, key, path.empty() ? "the recipe" : path, place);
    path += (path.empty() ? "" : ".") + key;
  }

  // A written null removes; no text at all (an empty variable of a shell) does not.
  const std::string_view text = assignment.substr(equals + 1);
  YamlNode value = parse(text, place.source, false);
  const bool removes = value.kind == YamlNode::Kind::kNull && !text.empty();
  if (removes && node->kind != YamlNode::Kind::kNull) return remove_child(*parent, keys.back());
  *node = std::move(value);
  node->place = place;
}

}  // namespace retort::launch
