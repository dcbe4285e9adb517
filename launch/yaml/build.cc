#include "launch/yaml/build.h"

#include <yaml-cpp/yaml.h>

#include <cctype>
#include <string_view>

#include "launch/yaml/writer.h"

namespace retort::launch {
namespace {

// A scalar without quotes keeps its type only without quotes: 8, 1e3, true. One with other
// characters than these is text to every reader.
bool may_have_a_type(std::string_view text) {
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.' &&
        c != '_' && c != '/')
      return false;
  return !text.empty();
}

void emit_scalar(YAML::Emitter& out, const YamlNode& node) {
  if (!node.quoted && may_have_a_type(node.scalar)) {
    out << node.scalar;
  } else if (node.scalar.find('\n') != std::string::npos) {
    out << YAML::Literal << node.scalar;
  } else if (is_plain_text(node.scalar)) {
    out << node.scalar;
  } else {
    out << YAML::DoubleQuoted << node.scalar;
  }
}

void emit(YAML::Emitter& out, const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: out << YAML::Null; break;
    case YamlNode::Kind::kScalar: emit_scalar(out, node); break;
    case YamlNode::Kind::kList:
      // In block style an empty list or map would be written as nothing.
      if (node.items.empty()) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const YamlNode& item : node.items)
        emit(out, item);
      out << YAML::EndSeq;
      break;
    case YamlNode::Kind::kMap:
      if (node.entries.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const YamlNode::Entry& entry : node.entries) {
        out << YAML::Key;
        emit_scalar(out, yaml_string(entry.key));
        out << YAML::Value;
        emit(out, entry.value);
      }
      out << YAML::EndMap;
      break;
  }
}

}  // namespace

YamlNode yaml_string(const std::string& text) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.scalar = text;
  node.quoted = true;
  return node;
}

YamlNode yaml_number(int64_t number) {
  YamlNode node = yaml_string(std::to_string(number));
  node.quoted = false;
  return node;
}

YamlNode yaml_switch(bool value) {
  YamlNode node = yaml_string(yaml_text(value));
  node.quoted = false;
  return node;
}

YamlNode yaml_block(std::vector<std::pair<std::string, YamlNode>> entries) {
  YamlNode node;
  node.kind = YamlNode::Kind::kMap;
  for (auto& [key, value] : entries)
    add_entry(node, key, std::move(value));
  return node;
}

YamlNode yaml_list(std::vector<YamlNode> items) {
  YamlNode node;
  node.kind = YamlNode::Kind::kList;
  node.items = std::move(items);
  return node;
}

void add_entry(YamlNode& block, const std::string& key, YamlNode value) {
  block.entries.push_back({.key = key, .place = {}, .value = std::move(value)});
}

std::string yaml_document(const YamlNode& root) {
  YAML::Emitter out;
  emit(out, root);
  return std::string(out.c_str()) + "\n";
}

std::string yaml_line(const YamlNode& root) {
  std::string text;
  switch (root.kind) {
    case YamlNode::Kind::kNull: return "null";
    case YamlNode::Kind::kScalar:
      return !root.quoted && may_have_a_type(root.scalar) ? root.scalar : yaml_text(root.scalar);
    case YamlNode::Kind::kList:
      for (const YamlNode& item : root.items)
        text += (text.empty() ? "" : ", ") + yaml_line(item);
      return "[" + text + "]";
    case YamlNode::Kind::kMap:
      for (const YamlNode::Entry& entry : root.entries)
        text += (text.empty() ? "" : ", ") + yaml_key(entry.key) + ": " + yaml_line(entry.value);
      return "{" + text + "}";
  }
  return text;
}

}  // namespace retort::launch
