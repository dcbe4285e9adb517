#include "models/config/classifier.h"

#include <string>
#include <string_view>

namespace retort::models {
namespace {

constexpr std::string_view kClassifies = "ForSequenceClassification";
// transformers writes no names for so many labels.
constexpr int64_t kUnnamedLabels = 2;
constexpr int64_t kMostLabels = 65536;

bool is_classifier(const ConfigFields& fields) {
  const ConfigJson* names = fields.find("architectures");
  if (names == nullptr || !names->is_array()) return false;
  for (const ConfigJson& name : *names)
    if (name.is_string() && name.get<std::string>().ends_with(kClassifies)) return true;
  return false;
}

// Returns "Llama" for "LlamaForCausalLM"; for a config that names no architecture "llama" becomes
// "Llama".
std::string stem_of(const ConfigJson& json) {
  const auto names = json.find("architectures");
  if (names != json.end() && names->is_array() && !names->empty() && names->front().is_string()) {
    const auto name = names->front().get<std::string>();
    const size_t end = name.find("For");
    if (end != std::string::npos && end > 0) return name.substr(0, end);
  }
  auto type = json.at("model_type").get<std::string>();
  if (!type.empty() && type.front() >= 'a' && type.front() <= 'z')
    type.front() = static_cast<char>(type.front() - 'a' + 'A');
  return type;
}

}  // namespace

SequenceClassifier parse_classifier(const ConfigFields& fields) {
  if (!is_classifier(fields)) return {};
  SequenceClassifier classifier;
  classifier.pad_token_id = fields.integer("pad_token_id", -1, -1);
  // transformers counts the labels by their names where there are any.
  const ConfigJson* names = fields.find("id2label");
  if (names == nullptr) {
    classifier.num_labels = fields.integer("num_labels", kUnnamedLabels, 1);
  } else {
    if (!names->is_object() || names->empty())
      fields.fail("id2label", *names, "expected an object with a name for each label");
    classifier.num_labels = static_cast<int64_t>(names->size());
  }
  if (classifier.num_labels > kMostLabels)
    fields.fail("num_labels", classifier.num_labels,
                "expected at most " + std::to_string(kMostLabels));
  return classifier;
}

void write_classifier(ConfigJson& json, const ModelConfig& config) {
  const int64_t labels = config.classifier.num_labels;
  if (labels == 0) return;
  const auto id2label = json.find("id2label");
  const bool named = id2label != json.end() && id2label->is_object() &&
                     static_cast<int64_t>(id2label->size()) == labels;
  json["architectures"] = ConfigJson::array({stem_of(json) + std::string(kClassifies)});
  json.erase("num_labels");

  // Names that are there stay as they are.
  if (!named) {
    ConfigJson names = ConfigJson::object();
    ConfigJson numbers = ConfigJson::object();
    for (int64_t label = 0; label < labels; ++label) {
      const std::string name = "LABEL_" + std::to_string(label);
      names[std::to_string(label)] = name;
      numbers[name] = label;
    }
    json["id2label"] = std::move(names);
    json["label2id"] = std::move(numbers);
  }
  json["pad_token_id"] = config.classifier.pad_token_id >= 0
                             ? ConfigJson(config.classifier.pad_token_id)
                             : ConfigJson(nullptr);
}

}  // namespace retort::models
