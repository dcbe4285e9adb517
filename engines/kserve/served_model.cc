#include "engines/kserve/served_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/options.h"

namespace retort::engines::kserve {
namespace {

constexpr int64_t kAny = -1;

// A tensor of ours. `shape`: sizes that a model may leave open (kAny) or, where they are 1, fix.
// The model says how many numbers a score has.
struct Convention {
  std::string_view name;
  bool input;
  std::string_view datatypes;  // with blanks around each
  std::vector<int64_t> shape;
};
const std::vector<Convention>& conventions() {
  static const std::vector<Convention> all{
      {kInputIds, true, " INT32 ", {kAny}},
      {kPositions, true, " INT32 ", {kAny}},
      {kTopK, true, " INT32 ", {1}},
      {kPromptLength, true, " INT32 ", {1}},
      {kGivenLogProbs, false, " FP32 ", {kAny}},
      {kTopKIds, false, " INT32 ", {kAny, kAny}},
      {kTopKLogProbs, false, " FP32 ", {kAny, kAny}},
      {kHiddenStates, false, " FP32 FP16 BF16 ", {kAny, kAny}},
      {kScores, false, " FP32 ", {kAny}},
  };
  return all;
}

[[noreturn]] void mismatch(const std::string& what) { throw Error(ErrorCode::kMismatch, what); }

// What to call a tensor in a message: ours, and the server's where that differs.
std::string title(const Convention& ours, const std::string& theirs) {
  const std::string name(ours.name);
  return (ours.input ? "input " : "output ") + name +
         (theirs == name ? "" : " (" + in_quotes(theirs) + " there)");
}

std::map<std::string, TensorSpec> read_tensors(const Json& metadata, const std::string& list) {
  std::map<std::string, TensorSpec> tensors;
  for (const Json& entry : list_field(metadata, list, "model")) {
    TensorSpec spec;
    spec.name = text_field(entry, "name", list);
    spec.datatype = text_field(entry, "datatype", list + " " + in_quotes(spec.name));
    spec.shape = shape_field(entry, list + " " + in_quotes(spec.name));
    if (!tensors.emplace(spec.name, spec).second)
      mismatch(list + " has " + in_quotes(spec.name) + " twice");
  }
  return tensors;
}

void check_kind(const Convention& ours, const TensorSpec& spec) {
  const std::string what = title(ours, spec.name);
  if (ours.datatypes.find(" " + spec.datatype + " ") == std::string_view::npos)
    mismatch(what + ": datatype " + in_quotes(spec.datatype) + "; expected one of" +
             std::string(ours.datatypes));

  bool fits = spec.shape.size() == ours.shape.size();
  for (size_t i = 0; fits && i < spec.shape.size(); ++i)
    fits = ours.shape[i] == kAny ? spec.shape[i] == kAny || i == 1 || ours.name == kScores
                                 : spec.shape[i] == kAny || spec.shape[i] == ours.shape[i];
  if (!fits)
    mismatch(what + ": shape " + shape_text(spec.shape) + "; expected " + shape_text(ours.shape) +
             (spec.shape.size() == ours.shape.size() + 1
                  ? "; the first is that of batches: set max_batch_size to 0"
                  : ""));
}

std::string names_of(const std::map<std::string, TensorSpec>& tensors) {
  std::string names;
  for (const auto& [name, spec] : tensors)
    names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

// An input that nobody fills must be one that the model can do without.
void check_unused_inputs(const ServedModel& model,
                         const std::map<std::string, TensorSpec>& inputs) {
  for (const auto& [name, spec] : inputs) {
    const auto is_this = [&](const auto& ours) { return ours.second.name == name; };
    if (std::any_of(model.tensors.begin(), model.tensors.end(), is_this)) continue;

    bool optional = false;
    if (model.configuration && model.configuration->contains("input"))
      for (const Json& entry : list_field(*model.configuration, "input", "configuration"))
        if (entry.is_object() && entry.value("name", Json()) == name)
          optional = entry.value("optional", Json(false)) == true;
    if (!optional)
      mismatch("the model needs an input " + in_quotes(name) +
               ", which is none of ours; make it optional, or map one of ours to it (tensors)");
  }
}

// A number of the configuration's `parameters`; 0 if it does not have it.
int64_t parameter(const ServedModel& model, const std::string& name) {
  if (!model.configuration) return 0;
  const auto all = model.configuration->find("parameters");
  if (all == model.configuration->end() || !all->is_object() || !all->contains(name)) return 0;

  const std::string text =
      text_field((*all)[name], "string_value", "configuration, parameter " + name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > INT32_MAX)
    mismatch("the model's configuration: parameter " + name + " is " + in_quotes(text) +
             "; expected a number from 1 on");
  return value;
}

void set_top_k(ServedModel& model) {
  if (model.has(kTopKIds) != model.has(kTopKLogProbs))
    mismatch("the model gives one of topk_ids and topk_logprobs; expected both or none");
  if (!model.has(kTopKIds)) return;

  // The second size says which kind of model this is: a number is the only K that it answers with,
  // an open one means that the input top_k says it.
  const int64_t k = model.tensors.find(kTopKIds)->second.shape[1];
  if (model.tensors.find(kTopKLogProbs)->second.shape[1] != k)
    mismatch("topk_ids and topk_logprobs differ in their second size");
  if (k == 0) mismatch("topk_ids: its second size is 0");
  if (k > 0) {
    model.fixed_k = k;
    model.abilities.max_top_k = k;
    return;
  }

  if (!model.has(kTopK))
    mismatch(
        "topk_ids: its second size is open, and the model has no input top_k [1] that says it; "
        "fix the one or add the other");
  // A model of the second kind has no limit in its description, so its configuration names one, or
  // the vocabulary is the limit.
  const int64_t named = parameter(model, "max_top_k");
  model.abilities.max_top_k = named > 0 ? named : model.state.vocab_rows;
  if (model.abilities.max_top_k == 0)
    mismatch(
        "how large top_k may be is unknown; give the model's configuration a parameter "
        "max_top_k");
}

// A model that leaves open how many numbers its scores are gives one.
void set_labels(ServedModel& model) {
  const int64_t labels = model.tensors.find(kScores)->second.shape[0];
  if (labels == 0) mismatch("scores: its size is 0");
  model.abilities.rewards = labels == kAny ? 1 : labels;
}

void set_abilities(ServedModel& model) {
  model.state.vocab_rows = parameter(model, "vocab_rows");
  model.state.context_tokens = parameter(model, "context_tokens");
  set_top_k(model);
  model.abilities.scores = model.has(kGivenLogProbs);
  model.abilities.hidden_states = model.has(kHiddenStates);
  if (model.has(kScores)) set_labels(model);

  if (model.abilities.hidden_states && model.tensors.find(kHiddenStates)->second.shape[1] < 1)
    mismatch("hidden_states: its second size is open; fix it, it is the model's hidden size");
  const bool of_positions =
      model.abilities.scores || model.abilities.hidden_states || model.abilities.max_top_k > 0;
  if (of_positions && !model.has(kPositions))
    mismatch("the model has no input positions [-1] INT32, which its outputs belong to");
}

}  // namespace

void check_tensor_names(const std::map<std::string, std::string>& names) {
  std::vector<std::string_view> known;
  for (const Convention& ours : conventions())
    known.push_back(ours.name);
  // Two of our names for one tensor of the server's would fill it twice, or read it as two things.
  std::map<std::string, std::string> taken;
  for (const auto& [ours, theirs] : names) {
    try {
      check_choice(ours, known);
    } catch (const Error& error) {
      throw Error(error.code(), "tensors: " + error.message());
    }
    if (theirs.empty()) throw Error(ErrorCode::kInvalidArgument, "tensors: " + ours + " is empty");
    const auto [other, is_new] = taken.emplace(theirs, ours);
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument, "tensors: " + other->second + " and " + ours +
                                                   " have the same name at the server: " + theirs);
  }
}

ServedModel read_served_model(const std::string& model,
                              const std::map<std::string, std::string>& names, const Json& metadata,
                              std::optional<Json> configuration) {
  const std::string named = text_field(metadata, "name", "model");
  if (named != model)
    mismatch("asked for model " + in_quotes(model) + ", told of " + in_quotes(named));
  const auto inputs = read_tensors(metadata, "inputs");
  const auto outputs = read_tensors(metadata, "outputs");

  ServedModel result;
  result.state.served_model = model;
  result.configuration = std::move(configuration);
  // Each tensor of ours is looked up under the name that the options give it. One that is absent is
  // no error unless the options name it: the abilities follow from what is there. Only input_ids is
  // needed always.
  bool gives_any = false;
  for (const Convention& ours : conventions()) {
    const auto mapped = names.find(std::string(ours.name));
    const std::string theirs = mapped == names.end() ? std::string(ours.name) : mapped->second;
    const auto& there = ours.input ? inputs : outputs;
    const auto found = there.find(theirs);
    if (found == there.end()) {
      if (mapped == names.end() && ours.name != kInputIds) continue;
      mismatch("the model has no " + title(ours, theirs) + "; it has " + names_of(there));
    }
    check_kind(ours, found->second);
    result.tensors.emplace(ours.name, found->second);
    gives_any = gives_any || !ours.input;
  }

  if (!gives_any)
    mismatch("the model gives nothing that is ours; it gives " + names_of(outputs) +
             ": map one of our names to it (tensors)");
  check_unused_inputs(result, inputs);
  set_abilities(result);
  return result;
}

}  // namespace retort::engines::kserve
