// Decodes: the YAML of a recipe, and changes to it as on the command line (launch/yaml/tree.h). The
//   first byte says whether the last line is one.
// Holds: the tree is within the limits of yaml_limits.h.
#include "launch/yaml/tree.h"

#include <algorithm>

#include "launch/yaml/yaml_limits.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::yaml {
namespace {

using launch::YamlNode;

struct TreeSize {
  int64_t nodes = 0;
  uint64_t bytes = 0;
  int depth = 0;
};

void measure(const YamlNode& node, int depth, TreeSize& size) {
  ++size.nodes;
  size.bytes += node.scalar.size();
  size.depth = std::max(size.depth, depth);
  for (const YamlNode& item : node.items)
    measure(item, depth + 1, size);
  for (size_t i = 0; i < node.entries.size(); ++i) {
    size.bytes += node.entries[i].key.size();
    measure(node.entries[i].value, depth + 1, size);
  }
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const bool changed = source.byte() % 2 == 1;
  std::string_view text = source.rest();
  std::string_view change;
  if (const size_t line = text.rfind('\n'); changed && line != std::string_view::npos) {
    change = text.substr(line + 1);
    text = text.substr(0, line);
  }

  YamlNode root = launch::parse_yaml(text, "r.yaml");
  TreeSize size;
  measure(root, 0, size);
  expect(size.nodes <= launch::kMaxYamlNodes, "more values than there may be");
  expect(size.bytes <= launch::kMaxYamlBytes, "more text than there may be");
  expect(size.depth <= launch::kMaxYamlDepth, "nested deeper than it may be");
  if (changed) launch::apply_override(root, change);
  return true;
}

std::vector<Seed> seeds() {
  const auto plain = [](std::string_view text) { return ByteSink().byte(0).raw(text).bytes(); };
  const auto with_change = [](std::string_view text) {
    return ByteSink().byte(1).raw(text).bytes();
  };
  return {{"recipe", plain("recipe: sft\nroles:\n  student: {model: /m, env: {A: '1'}}\n"
                           "data:\n  train: [{path: a.jsonl, weight: 0.5}]  # one\n")},
          {"anchors", plain("a: &a {x: 1, y: [2, null]}\nb:\n  <<: *a\n  x: 3\nc: [*a, *a]\n"
                            "d:\n  <<: [*a, {z: 1}]\n")},
          {"texts", plain("a: |\n  two\n  lines\nb: >-\n  one\n  line\n? c\n: \"\\u00e9 $${x}\"\n"
                          "d: !!str 5\n")},
          {"change", with_change("a: {b: [1, 2]}\na.b.1={c: d}")},
          {"removed", with_change("a: {b: [1, 2]}\na.b=null")}};
}

}  // namespace

Target target() { return {"yaml", decode, seeds}; }

}  // namespace retort::fuzz::yaml
