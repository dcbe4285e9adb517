#include "launch/yaml/yaml_limits.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>
#include <string>

namespace retort::launch {
namespace {

struct TooManyNodes {
  int line = 0;
};

class NodeCount : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnMapEnd() override {}

 private:
  void count(const YAML::Mark& mark) {
    // A key counts here and not in the tree, hence twice the limit.
    if (++count_ > 2 * kMaxYamlNodes) throw TooManyNodes{mark.is_null() ? 0 : mark.line};
  }
  int64_t count_ = 0;
};

}  // namespace

int line_of_too_many_nodes(std::string_view text) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  NodeCount count;
  try {
    while (parser.HandleNextDocument(count)) {
    }
  } catch (const TooManyNodes& found) {
    return found.line;
  }
  return -1;
}

}  // namespace retort::launch
