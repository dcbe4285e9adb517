// Trees of YAML made in the program, and their text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launch/yaml/tree.h"

namespace retort::launch {

//     yaml_block({{"kind", yaml_string("Job")}, {"completions", yaml_number(2)}})
YamlNode yaml_string(const std::string& text);  // always read as text: "8", "true"
YamlNode yaml_number(int64_t number);
YamlNode yaml_switch(bool value);
YamlNode yaml_block(std::vector<std::pair<std::string, YamlNode>> entries);
YamlNode yaml_list(std::vector<YamlNode> items);
void add_entry(YamlNode& block, const std::string& key, YamlNode value);

// A document in block style that is read as the same tree. `${` stays as it is: this is for other
// programs.
std::string yaml_document(const YamlNode& root);
// The same on one line, with `$${` for `${`: what parse_yaml() reads as the same tree.
std::string yaml_line(const YamlNode& root);

}  // namespace retort::launch
