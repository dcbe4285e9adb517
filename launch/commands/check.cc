// retort check: is the signal right, on this recipe's models and data, before money is spent?
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/error.h"
#include "base/random.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "launch/commands/reference_divergence.h"
#include "launch/recipe.h"
#include "recipes/data/batches.h"
#include "recipes/data/pair_batches.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/preference.h"
#include "roles/payload.h"

namespace retort::launch {
namespace {

constexpr int64_t kMaxRows = 16;  // target positions examined; fp64 finite differences need no more

// Prints one line for each check and throws at the first that fails.
class Report {
 public:
  void check(const char* name, bool passed, const std::string& detail) {
    std::printf("%s %-28s %s\n", passed ? "ok  " : "FAIL", name, detail.c_str());
    if (!passed)
      throw Error(ErrorCode::kMismatch, std::string("check '") + name + "' failed: " + detail);
  }
};

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// The final hidden states of one model at the first target positions of the first training batch.
struct Rows {
  at::Tensor hidden, weight;
};

Rows rows_of(const models::Decoder& decoder, const data::MicroBatch& batch) {
  const at::Tensor positions =
      batch.predict_positions.narrow(0, 0, std::min(kMaxRows, batch.num_targets()));
  return {decoder.hidden(batch.tokens).index_select(0, positions).detach().to(at::kFloat),
          decoder.head_weight().detach().to(at::kFloat)};
}

losses::TeacherSignal signal_of(const Rows& teacher, const roles::PayloadSpec& spec) {
  roles::Payload payload = roles::make_payload(teacher.hidden, teacher.weight, spec);
  if (spec.kind == roles::PayloadKind::kTopK)
    return losses::TeacherTopK{payload.ids, payload.logps, payload.log_tail};
  if (spec.kind == roles::PayloadKind::kFull) return losses::TeacherFull{payload.logps};
  return losses::TeacherHidden{payload.hidden, teacher.weight, {}};
}

std::vector<std::vector<double>> logits64(const at::Tensor& hidden, const at::Tensor& weight,
                                          int64_t vocab) {
  const at::Tensor logits = at::matmul(hidden.to(at::kDouble), weight.to(at::kDouble).t())
                                .narrow(1, 0, vocab)
                                .contiguous();
  std::vector<std::vector<double>> rows;
  const double* value = logits.const_data_ptr<double>();
  for (int64_t r = 0; r < logits.size(0); ++r)
    rows.emplace_back(value + r * vocab, value + (r + 1) * vocab);
  return rows;
}

struct Setting {
  losses::DivergenceOptions options;  // kd_ratio 1
  roles::PayloadSpec spec;
  int64_t vocab = 0;
  int64_t top_k() const { return spec.kind == roles::PayloadKind::kTopK ? spec.top_k : 0; }
};

double reference_mean(const Rows& teacher, const at::Tensor& hidden64, const at::Tensor& weight,
                      const Setting& setting) {
  const auto q = logits64(teacher.hidden, teacher.weight, setting.vocab);
  const auto p = logits64(hidden64, weight, setting.vocab);
  double sum = 0;
  for (size_t r = 0; r < q.size(); ++r)
    sum += reference_divergence(q[r], p[r], setting.options, setting.top_k());
  return sum / static_cast<double>(q.size());
}

double kd_mean(const Rows& teacher, const Rows& student, const at::Tensor& targets,
               const Setting& setting) {
  const auto result = losses::linear_distill(student.hidden, student.weight, {}, targets,
                                             signal_of(teacher, setting.spec), setting.options);
  return result.kd_sum / static_cast<double>(result.count);
}

bool zero_at_equality(const losses::DivergenceOptions& options) {
  return options.tail != losses::Tail::kRenormalize;
}

void check_equal_models(Report& report, const Rows& student, const at::Tensor& targets,
                        const Setting& setting) {
  const double value = kd_mean(student, student, targets, setting);
  if (setting.top_k() > 0 && !zero_at_equality(setting.options)) {
    const double expected =
        reference_mean(student, student.hidden.to(at::kDouble), student.weight, setting);
    report.check("student == teacher", std::abs(value - expected) < 1e-5,
                 "loss " + scientific(value) + " = mean -log(teacher mass) " +
                     scientific(expected) + " (tail: renormalize)");
    return;
  }
  report.check("student == teacher", std::abs(value) < 1e-6,
               "loss " + scientific(value) + ", must be below 1e-6");
}

void check_value_and_direction(Report& report, const Rows& teacher, const Rows& student,
                               const at::Tensor& targets, const Setting& setting) {
  const double value = kd_mean(teacher, student, targets, setting);
  const double expected =
      reference_mean(teacher, student.hidden.to(at::kDouble), student.weight, setting);
  const double error = std::abs(value - expected) / std::max(std::abs(expected), 1e-6);
  report.check("value against fp64", error < 1e-4,
               scientific(value) + " against " + scientific(expected) + ", relative error " +
                   scientific(error));
  Setting swapped = setting;
  if (swapped.options.type == losses::DivergenceType::kForwardKl)
    swapped.options.type = losses::DivergenceType::kReverseKl;
  else if (swapped.options.type == losses::DivergenceType::kReverseKl)
    swapped.options.type = losses::DivergenceType::kForwardKl;
  else
    return;
  if (setting.top_k() > 0 && setting.options.tail != losses::Tail::kBucket) return;
  const double other =
      reference_mean(teacher, student.hidden.to(at::kDouble), student.weight, swapped);
  report.check("direction",
               std::abs(value - expected) < 0.1 * std::abs(other - expected) ||
                   std::abs(other - expected) < 1e-7,
               std::string(enum_name(setting.options.type)) + " " + scientific(value) +
                   ", the other direction would be " + scientific(other));
}

// The gradient along a random direction of the student's hidden states against central differences
// of the fp64 reference.
void check_gradient(Report& report, const Rows& teacher, const Rows& student,
                    const at::Tensor& targets, const Setting& setting) {
  const at::Tensor hidden = student.hidden.clone().set_requires_grad(true);
  const auto result = losses::linear_distill(hidden, student.weight, {}, targets,
                                             signal_of(teacher, setting.spec), setting.options);
  result.loss_sum.backward();
  at::Tensor direction = at::empty(hidden.sizes(), at::kDouble);
  double* value = direction.mutable_data_ptr<double>();
  for (int64_t i = 0; i < direction.numel(); ++i)
    value[i] = random_uniform(1, static_cast<uint64_t>(i)) - 0.5;
  const double analytic = (hidden.grad().to(at::kDouble) * direction).sum().item<double>() /
                          static_cast<double>(result.count);
  const double h = 1e-5;
  const at::Tensor center = student.hidden.to(at::kDouble);
  const double numeric =
      (reference_mean(teacher, center + direction * h, student.weight, setting) -
       reference_mean(teacher, center - direction * h, student.weight, setting)) /
      (2 * h);
  const double scale = std::max(std::abs(numeric), 1e-5);
  report.check("gradient (finite differences)", std::abs(analytic - numeric) / scale < 1e-2,
               scientific(analytic) + " against " + scientific(numeric));
}

void check_temperature(Report& report, const Rows& teacher, const Rows& student,
                       const at::Tensor& targets, Setting setting) {
  setting.options.temperature *= 2;
  setting.spec.temperature *= 2;
  const double value = kd_mean(teacher, student, targets, setting);
  const double expected =
      reference_mean(teacher, student.hidden.to(at::kDouble), student.weight, setting);
  report.check("temperature",
               std::abs(value - expected) < 1e-4 * std::max(std::abs(expected), 1e-2),
               "at " + scientific(setting.options.temperature) + ": " + scientific(value) +
                   " against " + scientific(expected));
}

int64_t check_vocabularies(Report& report, const LoadedModel& student, const LoadedModel& teacher,
                           const std::string& role) {
  const int64_t known = std::min(student.tokenizer.vocab_size(), teacher.tokenizer.vocab_size());
  const std::string mine = student.tokenizer.vocabulary_fingerprint(known).substr(0, 16);
  const std::string theirs = teacher.tokenizer.vocabulary_fingerprint(known).substr(0, 16);
  report.check("vocabularies", mine == theirs,
               role + ": " + std::to_string(known) + " ids both know, student " + mine + ", " +
                   role + " " + theirs);
  return std::min(
      {known, student.decoder.config().vocab_size, teacher.decoder.config().vocab_size});
}

// log p of the chosen and of the rejected completion of a batch of one pair: [2].
at::Tensor completion_log_probs(const models::Decoder& decoder, const models::PackedTokens& tokens,
                                const at::Tensor& positions, const data::PairMicroBatch& batch) {
  const at::Tensor rows = decoder.hidden(tokens).index_select(0, positions);
  const at::Tensor log_probs =
      losses::linear_log_probs(rows, decoder.head_weight(), {}, batch.targets).log_probs;
  return at::zeros({2}, log_probs.options()).index_add(0, batch.sequence_of_row, log_probs);
}

// dpo: the first pair of the run whose completions differ.
void check_pair(Report& report, const Recipe& recipe, const LoadedModel& student) {
  const losses::PreferenceOptions options = recipe.dpo->preference();
  auto dataset = std::make_shared<data::PreferenceDataset>(recipe.data.train, recipe.data,
                                                           student.tokenizer, student.chat, "");
  data::PairBatchStream stream(dataset, {.seed = static_cast<uint64_t>(recipe.seed),
                                         .rows_per_micro_batch = 1,
                                         .shuffle = recipe.data.shuffle});
  data::PairMicroBatch batch = stream.next().micro_batches.at(0);
  for (int tries = 0; batch.pairs[0].identical && tries < 100; ++tries)
    batch = stream.next().micro_batches.at(0);
  const data::PairShape& shape = batch.shapes.at(0);
  report.check("pair", !batch.pairs[0].identical,
               batch.pairs[0].origin + ": " + std::to_string(shape.chosen_tokens) +
                   " tokens of the chosen completion, " + std::to_string(shape.rejected_tokens) +
                   " of the rejected one, which must differ");
  const data::SharedPrompts shared = data::share_prompts(batch);
  c10::NoGradGuard no_grad;
  const at::Tensor apart =
      completion_log_probs(student.decoder, batch.tokens, batch.predict_positions, batch);
  const at::Tensor forked =
      completion_log_probs(student.decoder, shared.tokens, shared.predict_positions, batch);
  const double error = ((apart - forked).abs() / apart.abs().clamp_min(1)).max().item<double>();
  report.check(
      "one prompt, two completions", error < 1e-4,
      "log p as two sequences and as one that forks: relative difference " + scientific(error));
  c10::AutoGradMode grad(true);
  const at::Tensor chosen = forked.narrow(0, 0, 1).clone().set_requires_grad(true);
  const at::Tensor rejected = forked.narrow(0, 1, 1).clone().set_requires_grad(true);
  losses::PreferenceInputs inputs{
      .policy_chosen = chosen,
      .policy_rejected = rejected,
      .reference_chosen = {},
      .reference_rejected = {},
      .chosen_tokens = at::full({1}, static_cast<double>(shape.chosen_tokens)),
      .rejected_tokens = at::full({1}, static_cast<double>(shape.rejected_tokens))};
  if (losses::needs_reference(options)) {
    inputs.reference_chosen = chosen.detach();
    inputs.reference_rejected = rejected.detach();
  }
  const losses::PreferenceResult result = losses::preference_loss(inputs, options);
  const double loss = result.loss_sum.item<double>();
  if (options.loss_type == std::vector{losses::PreferenceLoss::kSigmoid} &&
      options.loss_weights.empty())
    report.check("student == reference", std::abs(loss - std::numbers::ln2) < 1e-6,
                 "loss " + scientific(loss) + ", must be ln 2");
  (result.loss_sum + result.chosen_nll_sum).sum().backward();
  const double slope = (chosen.grad() - rejected.grad()).item<double>();
  report.check(
      "direction", slope < 0,
      "d loss / d (log p chosen - log p rejected) " + scientific(slope) + ", must be below 0");
}

}  // namespace

int run_check(const RecipeCommand& command) {
  const Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  Report report;
  const LoadedModel student = load_model(recipe.roles.at("student").model, "float32");
  if (recipe.recipe == RecipeKind::kDpo) {
    check_pair(report, recipe, student);
    if (losses::needs_reference(recipe.dpo->preference()))
      check_vocabularies(report, student,
                         load_model(recipe.roles.at(recipe.dpo->reference).model, "float32"),
                         recipe.dpo->reference);
    std::printf("all checks passed\n");
    return 0;
  }
  auto dataset = std::make_shared<data::Dataset>(recipe.data.train, recipe.data, student.tokenizer,
                                                 student.chat, "");
  data::BatchStream stream(dataset, {.seed = static_cast<uint64_t>(recipe.seed),
                                     .rows_per_micro_batch = 1,
                                     .max_length = recipe.data.max_length,
                                     .packing = recipe.data.packing,
                                     .shuffle = recipe.data.shuffle});
  const data::MicroBatch batch = stream.next().micro_batches.at(0);
  report.check("targets", batch.num_targets() > 0,
               std::to_string(batch.num_targets()) + " in the first row");
  c10::NoGradGuard no_grad;
  const Rows student_rows = rows_of(student.decoder, batch);
  const at::Tensor targets = batch.targets.narrow(0, 0, student_rows.hidden.size(0));
  const auto ce =
      losses::linear_cross_entropy(student_rows.hidden, student_rows.weight, {}, targets);
  const at::Tensor logits =
      at::matmul(student_rows.hidden.to(at::kDouble), student_rows.weight.to(at::kDouble).t());
  const double expected =
      -at::log_softmax(logits, 1).gather(1, targets.unsqueeze(1)).sum().item<double>();
  report.check("cross-entropy against fp64",
               std::abs(ce.loss_sum.item<double>() - expected) < 1e-4 * std::abs(expected),
               scientific(ce.loss_sum.item<double>()) + " against " + scientific(expected));
  if (!recipe.distill) {
    std::printf("all checks passed\n");
    return 0;
  }
  for (const recipes::TeacherOptions& options : recipe.distill->teachers) {
    const LoadedModel teacher = load_model(recipe.roles.at(options.role).model, "float32");
    Setting setting{.options = recipe.distill->divergence(),
                    .spec = recipe.distill->payload_spec()};
    setting.vocab = check_vocabularies(report, student, teacher, options.role);
    setting.options.kd_ratio = 1.0;
    setting.options.common_vocab = setting.spec.common_vocab = setting.vocab;
    setting.spec.bfloat16 = false;
    const Rows teacher_rows = rows_of(teacher.decoder, batch);
    c10::AutoGradMode grad(true);
    check_equal_models(report, student_rows, targets, setting);
    check_value_and_direction(report, teacher_rows, student_rows, targets, setting);
    check_gradient(report, teacher_rows, student_rows, targets, setting);
    check_temperature(report, teacher_rows, student_rows, targets, setting);
  }
  std::printf("all checks passed\n");
  return 0;
}

}  // namespace retort::launch
