#include "recipes/distill/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "models/ops/softcap.h"
#include "recipes/data/completion_sample.h"
#include "recipes/data/dataset.h"
#include "recipes/distill/cached_teacher.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/row_filter.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/rollout/self_check.h"
#include "recipes/rollout/turn_check.h"
#include "recipes/sft/self_check.h"
#include "roles/payload/payload.h"

namespace retort::recipes {
namespace {

// The divergences, written down a second time in fp64 and without any optimisation.
using Row = std::vector<double>;

double log_sum_exp(const Row& x) {
  const double top = *std::max_element(x.begin(), x.end());
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (double v : x)
    sum += std::exp(v - top);
  return top + std::log(sum);
}

Row log_softmax(Row x, double temperature) {
  for (double& v : x)
    v /= temperature;
  const double total = log_sum_exp(x);
  for (double& v : x)
    v -= total;
  return x;
}

double kl(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::isfinite(a[i])) sum += std::exp(a[i]) * (a[i] - b[i]);
  return sum;
}

// log(w e^q + (1-w) e^p)
Row mixture(const Row& q, const Row& p, double w) {
  Row m(q.size());
  for (size_t i = 0; i < q.size(); ++i)
    m[i] = std::log(w * std::exp(q[i]) + (1 - w) * std::exp(p[i]));
  return m;
}

double divergence(const Row& q, const Row& p, const losses::DivergenceOptions& o) {
  // q is the teacher, p the student, both as log-probabilities.
  switch (o.type) {
    case losses::DivergenceType::kForwardKl: return kl(q, p);
    case losses::DivergenceType::kReverseKl: return kl(p, q);
    case losses::DivergenceType::kJsd: {
      if (o.beta == 0) return kl(q, p);
      if (o.beta == 1) return kl(p, q);
      const Row m = mixture(q, p, o.beta);
      return o.beta * kl(q, m) + (1 - o.beta) * kl(p, m);
    }
    case losses::DivergenceType::kSkewedKl: return kl(q, mixture(q, p, o.skew_lambda));
    case losses::DivergenceType::kSkewedReverseKl: return kl(p, mixture(q, p, 1 - o.skew_lambda));
    case losses::DivergenceType::kTvd: {
      double sum = 0;
      for (size_t i = 0; i < q.size(); ++i)
        sum += std::abs(std::exp(q[i]) - std::exp(p[i]));
      return sum / 2;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// D(q, p) of one row, from both sides' logits over the common vocabulary (Formulas in
// docs/losses.md), with these ids, each once, and options.tail.
double reference_divergence(const Row& teacher_logits, const Row& student_logits,
                            const losses::DivergenceOptions& options,
                            const std::vector<size_t>& ids) {
  const double scale =
      options.scale_by_temperature_squared ? options.temperature * options.temperature : 1.0;
  const Row q = log_softmax(teacher_logits, options.temperature),
            p = log_softmax(student_logits, options.temperature);
  std::vector<bool> named(q.size(), false);
  for (const size_t id : ids)
    named.at(id) = true;
  Row q_top, p_top, q_rest, p_rest;
  for (size_t id = 0; id < q.size(); ++id) {
    (named[id] ? q_top : q_rest).push_back(q[id]);
    (named[id] ? p_top : p_rest).push_back(p[id]);
  }
  if (options.tail == losses::Tail::kBucket) {
    if (!q_rest.empty()) {
      q_top.push_back(log_sum_exp(q_rest));
      p_top.push_back(log_sum_exp(p_rest));
    }
    return scale * divergence(q_top, p_top, options);
  }
  if (options.tail == losses::Tail::kRenormalize) {
    const double mass = log_sum_exp(q_top);
    for (double& v : q_top)
      v -= mass;
  }
  return scale * kl(q_top, p_top);
}

// Takes the teacher's top_k ids; 0: the full vocabulary.
double reference_divergence(const Row& teacher_logits, const Row& student_logits,
                            const losses::DivergenceOptions& options, int64_t top_k) {
  std::vector<size_t> order(teacher_logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return teacher_logits[a] > teacher_logits[b]; });
  const auto vocab = static_cast<int64_t>(order.size());
  order.resize(static_cast<size_t>(top_k <= 0 ? vocab : std::min(top_k, vocab)));
  losses::DivergenceOptions whole = options;
  if (top_k <= 0) whole.tail = losses::Tail::kBucket;
  return reference_divergence(teacher_logits, student_logits, whole, order);
}

// Returns what the teacher sends to this student, whose ids it scores where the spec says so.
roles::Payload payload_of(const CheckedRows& teacher, const CheckedRows& student,
                          const roles::PayloadSpec& spec) {
  at::Tensor named;
  if (spec.names_ids()) {
    roles::PayloadSpec own = spec;
    own.support = roles::Support::kTeacher;
    named = roles::make_payload(student.hidden, student.weight, own, {}, {}, student.softcap).ids;
  }
  return roles::make_payload(teacher.hidden, teacher.weight, spec, named, {}, teacher.softcap);
}

std::vector<std::vector<double>> logits64(const CheckedRows& rows_of_model, int64_t vocab) {
  const auto& [hidden, weight, softcap] = rows_of_model;
  const at::Tensor products = at::matmul(hidden.to(at::kDouble), weight.to(at::kDouble).t());
  const at::Tensor logits = models::softcapped(products, softcap).narrow(1, 0, vocab).contiguous();
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

std::vector<size_t> ids_of_row(const at::Tensor& ids, size_t row) {
  const at::Tensor own = ids.select(0, static_cast<int64_t>(row)).to(at::kLong).contiguous();
  std::vector<size_t> named;
  for (int64_t i = 0; i < own.numel(); ++i)
    if (own.const_data_ptr<int64_t>()[i] >= 0)
      named.push_back(static_cast<size_t>(own.const_data_ptr<int64_t>()[i]));
  return named;
}

// `named`: the payload's ids, where they are not the teacher's.
double reference_mean(const CheckedRows& teacher, const CheckedRows& student,
                      const Setting& setting, const at::Tensor& named) {
  const auto q = logits64(teacher, setting.vocab);
  const auto p = logits64(student, setting.vocab);
  double sum = 0;
  for (size_t r = 0; r < q.size(); ++r)
    sum += named.defined() ? reference_divergence(q[r], p[r], setting.options, ids_of_row(named, r))
                           : reference_divergence(q[r], p[r], setting.options, setting.top_k());
  return sum / static_cast<double>(q.size());
}

at::Tensor named_by(const roles::Payload& payload) {
  return payload.label.spec.names_ids() ? payload.ids : at::Tensor();
}

// Returns the mean for the student as it is, with the ids that it names now.
double expected_mean(const CheckedRows& teacher, const CheckedRows& student,
                     const Setting& setting) {
  return reference_mean(teacher, student, setting,
                        named_by(payload_of(teacher, student, setting.spec)));
}

double kd_mean(const CheckedRows& teacher, const CheckedRows& student, const at::Tensor& targets,
               const Setting& setting) {
  const auto result =
      losses::linear_distill(student.hidden, student.weight, {}, targets,
                             to_signal(payload_of(teacher, student, setting.spec), teacher.weight),
                             setting.options, {}, student.softcap);
  return result.kd_sum / static_cast<double>(result.count);
}

bool zero_at_equality(const losses::DivergenceOptions& options) {
  return options.tail != losses::Tail::kRenormalize;
}

void check_equal_models(SelfCheck& check, const CheckedRows& student, const at::Tensor& targets,
                        const Setting& setting) {
  const double value = kd_mean(student, student, targets, setting);
  if (setting.top_k() > 0 && !zero_at_equality(setting.options)) {
    const double expected = expected_mean(student, student, setting);
    check.check("student == teacher", std::abs(value - expected) < 1e-5,
                "loss " + scientific(value) + " = mean -log(teacher mass) " + scientific(expected) +
                    " (tail: renormalize)");
    return;
  }
  check.check("student == teacher", std::abs(value) < 1e-6,
              "loss " + scientific(value) + ", must be below 1e-6");
}

void check_value_and_direction(SelfCheck& check, const CheckedRows& teacher,
                               const CheckedRows& student, const at::Tensor& targets,
                               const Setting& setting) {
  const double value = kd_mean(teacher, student, targets, setting);
  const double expected = expected_mean(teacher, student, setting);
  const double error = std::abs(value - expected) / std::max(std::abs(expected), 1e-6);
  check.check("value against fp64", error < 1e-4,
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
  const double other = expected_mean(teacher, student, swapped);
  check.check("direction",
              std::abs(value - expected) < 0.1 * std::abs(other - expected) ||
                  std::abs(other - expected) < 1e-7,
              std::string(enum_name(setting.options.type)) + " " + scientific(value) +
                  ", the other direction would be " + scientific(other));
}

// Compares the gradient along a random direction of the student's hidden states with central
// differences of the fp64 reference. Ids that the student names are constants of the loss, so the
// moved students keep those of the payload.
void check_gradient(SelfCheck& check, const CheckedRows& teacher, const CheckedRows& student,
                    const at::Tensor& targets, const Setting& setting) {
  const at::Tensor hidden = student.hidden.clone().set_requires_grad(true);
  const roles::Payload payload = payload_of(teacher, student, setting.spec);
  const auto result = losses::linear_distill(hidden, student.weight, {}, targets,
                                             to_signal(payload, teacher.weight), setting.options,
                                             {}, student.softcap);
  result.loss_sum.backward();
  at::Tensor direction = at::empty(hidden.sizes(), at::kDouble);
  double* value = direction.mutable_data_ptr<double>();
  for (int64_t i = 0; i < direction.numel(); ++i)
    value[i] = random_uniform(1, static_cast<uint64_t>(i)) - 0.5;
  const double analytic = (hidden.grad().to(at::kDouble) * direction).sum().item<double>() /
                          static_cast<double>(result.count);
  const double h = 1e-5;
  const auto moved = [&](double by) {
    return CheckedRows{student.hidden.to(at::kDouble) + direction * by, student.weight,
                       student.softcap};
  };
  const double numeric = (reference_mean(teacher, moved(h), setting, named_by(payload)) -
                          reference_mean(teacher, moved(-h), setting, named_by(payload))) /
                         (2 * h);
  const double scale = std::max(std::abs(numeric), 1e-5);
  check.check("gradient (finite differences)", std::abs(analytic - numeric) / scale < 1e-2,
              scientific(analytic) + " against " + scientific(numeric));
}

void check_temperature(SelfCheck& check, const CheckedRows& teacher, const CheckedRows& student,
                       const at::Tensor& targets, Setting setting) {
  setting.options.temperature *= 2;
  setting.spec.temperature *= 2;
  const double value = kd_mean(teacher, student, targets, setting);
  const double expected = expected_mean(teacher, student, setting);
  check.check("temperature", std::abs(value - expected) < 1e-4 * std::max(std::abs(expected), 1e-2),
              "at " + scientific(setting.options.temperature) + ": " + scientific(value) +
                  " against " + scientific(expected));
}

// Checks that the payloads of every row are there, and that those of the first are distributions.
// No teacher is at hand to compare them with.
void check_cached(SelfCheck& check, const Recipe& recipe, const TeacherOptions& options,
                  const data::MicroBatch& batch, const CheckedRows& student) {
  const models::LoadedModel& model = check.student();
  CachedTeacher teacher({.folder = options.cache,
                         .spec = recipe.distill->payload_spec(recipe.seed),
                         .student_vocab_rows = model.decoder.config().vocab_size},
                        model.tokenizer);
  const data::Dataset rows(recipe.data.train, recipe.data, model.tokenizer, model.chat, "");
  teacher.check_rows(rows, options.when, 0, 1);
  const CacheManifest& manifest = teacher.manifest();
  check.check("cache", true,
              options.cache + ": all rows, of " + std::to_string(manifest.sequences) + " with " +
                  std::to_string(manifest.rows) + " target tokens, by " + manifest.teacher.model);
  if (!std::ranges::all_of(batch.samples, [&](const data::Sample& sample) {
        return sample_matches(sample, options.when);
      }))
    return;

  roles::Payload payload =
      teacher.receive(teacher.send(1, 1, batch.tokens, batch.predict_positions));
  const int64_t count = student.hidden.size(0);
  for (at::Tensor* tensor : payload.row_tensors())
    if (tensor->defined()) *tensor = tensor->narrow(0, 0, count);
  losses::DivergenceOptions divergence = recipe.distill->divergence();
  divergence.kd_ratio = 1.0;
  divergence.common_vocab = teacher.common_vocab();
  const auto result = losses::linear_distill(
      student.hidden, student.weight, {}, batch.targets.narrow(0, 0, count),
      to_signal(payload, teacher.head_weight()), divergence, {}, student.softcap);
  check.check(
      "cached payload", std::isfinite(result.kd_sum),
      "loss " + scientific(result.kd_sum / static_cast<double>(count)) + " of the first row");
}

// Rows that begin episodes have no targets: the student's own answer to the first of them has.
data::MicroBatch drawn_batch(SelfCheck& check, const Recipe& recipe) {
  const CheckedPrompts prompts = check_prompts(check, recipe);
  check_turns(check, recipe);
  return data::make_micro_batch({data::completion_sample(prompts.first.at(0), prompts.greedy_ids)});
}

}  // namespace

void check_distill_numbers(SelfCheck& check, const Recipe& recipe) {
  const data::MicroBatch batch =
      recipe.environment
          ? drawn_batch(check, recipe)
          : first_batch(recipe, check, distill_row_rule(recipe, check.student().chat));
  c10::NoGradGuard no_grad;
  const CheckedRows student = rows_of(check.student().decoder, batch);
  const at::Tensor targets = batch.targets.narrow(0, 0, student.hidden.size(0));
  check_cross_entropy(check, student, targets);

  for (const TeacherOptions& options : recipe.distill->teachers) {
    if (options.is_cached()) {
      check_cached(check, recipe, options, batch, student);
      continue;
    }
    if (is_elsewhere(check, recipe, options.role)) continue;
    const models::LoadedModel teacher =
        models::load_model_without_chat(recipe.roles.at(options.role).model, "float32");
    if (recipe.distill->crosses_tokenizers()) {
      check_other_tokenizer(check, recipe, batch, student, teacher);
      continue;
    }
    // A policy gradient is of drawn tokens, and forms no divergence that could be compared.
    if (recipe.distill->use_policy_gradient) {
      check_vocabularies(check, teacher, options.role);
      continue;
    }

    Setting setting{.options = recipe.distill->divergence(),
                    .spec = recipe.distill->payload_spec(recipe.seed)};
    setting.vocab = check_vocabularies(check, teacher, options.role);
    setting.options.kd_ratio = 1.0;
    setting.options.common_vocab = setting.vocab;
    setting.spec.common_vocab = setting.vocab;
    // The comparison needs more digits than bfloat16 has.
    setting.spec.bfloat16 = false;
    // Draws estimate what the whole vocabulary gives.
    if (setting.spec.kind == roles::PayloadKind::kSampled)
      setting.spec.kind = roles::PayloadKind::kFull;

    const CheckedRows rows = rows_of(teacher.decoder, batch);
    c10::AutoGradMode grad(true);
    check_equal_models(check, student, targets, setting);
    check_value_and_direction(check, rows, student, targets, setting);
    check_gradient(check, rows, student, targets, setting);
    check_temperature(check, rows, student, targets, setting);
  }
}

}  // namespace retort::recipes
