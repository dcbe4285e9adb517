#include "recipes/distill/objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "models/ops/packed.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/run/loop/metric_sums.h"
#include "recipes/run/rank/request_id.h"

namespace retort::recipes {

// Rows are indices into the micro-batch's target positions. `weight` is the normalised weight, one
// for each row.
struct DistillObjective::Part {
  size_t teacher = 0;
  double weight = 1.0;
  at::Tensor rows;  // [r] int64, undefined: all rows of the micro-batch
  int64_t num_rows = 0;
  models::PackedTokens tokens;
  at::Tensor positions;  // [r] int64, into `tokens`
  roles::PendingPayload pending;
};

losses::TeacherSignal to_signal(const roles::Payload& payload, const at::Tensor& head) {
  switch (payload.label.spec.kind) {
    case roles::PayloadKind::kHiddenStates: return losses::TeacherHidden{payload.hidden, head, {}};
    case roles::PayloadKind::kTopK:
      return losses::TeacherTopK{payload.ids, payload.logps, payload.log_tail,
                                 payload.label.spec.support == roles::Support::kUnion};
    case roles::PayloadKind::kFull: return losses::TeacherFull{payload.logps};
    case roles::PayloadKind::kSampled:
      return losses::TeacherSampled{payload.ids, payload.logps, payload.kappa};
    case roles::PayloadKind::kTargetLogProbs: break;
  }
  RETORT_CHECK(false) << "a payload without a distribution";
  return {};
}

bool sample_matches(const data::Sample& sample, const std::map<std::string, std::string>& when) {
  return std::all_of(when.begin(), when.end(), [&](const auto& wanted) {
    return std::any_of(sample.fields.begin(), sample.fields.end(), [&](const auto& field) {
      return field.first == wanted.first && field.second == wanted.second;
    });
  });
}

namespace {

// So many micro-batches of an evaluation have answers in flight beyond the current one.
constexpr uint64_t kEvaluatedAhead = 1;

[[noreturn]] void refuse_untaught(const data::Sample& sample) {
  std::string fields;
  for (const auto& [name, value] : sample.fields)
    fields += (fields.empty() ? "" : ", ") + name + ": " + value;
  throw Error(ErrorCode::kInvalidArgument, "no teacher's `when` matches sample " + sample.origin +
                                               " with fields {" + fields +
                                               "}; add a teacher without `when` or fix the field");
}

}  // namespace

DistillObjective::DistillObjective(StepSource source, rpc::Agent& agent,
                                   std::vector<TeacherRoute> teachers, Options options)
    : BatchObjective(std::move(source)),
      peers_(agent),
      teachers_(std::move(teachers)),
      options_(options) {
  options_.divergence.validate();
}
DistillObjective::~DistillObjective() = default;

// A loss with a bound cannot come far above its lowest: tvd is at most 1, and a mixing jsd at most
// ln 2. What a cross-entropy adds has no bound.
bool DistillObjective::loss_falls() const {
  using losses::DivergenceType;
  const losses::DivergenceOptions& loss = options_.divergence;
  const bool mixes = loss.type == DivergenceType::kJsd && loss.beta > 0 && loss.beta < 1;
  const bool has_bound = mixes || loss.type == DivergenceType::kTvd;
  return !has_bound || loss.kd_ratio < 1;
}

std::vector<double> DistillObjective::weights_of(const data::Sample& sample) const {
  std::vector<double> weights(teachers_.size(), 0.0);
  double total = 0;
  for (size_t t = 0; t < teachers_.size(); ++t)
    if (sample_matches(sample, teachers_[t].when)) {
      weights[t] = teachers_[t].weight;
      total += weights[t];
    }
  if (total > 0)
    for (double& weight : weights)
      weight /= total;
  return weights;
}

// Makes a part of the batch as it is.
DistillObjective::Part DistillObjective::whole_part(const data::MicroBatch& batch) {
  Part part;
  part.tokens = batch.tokens;
  part.positions = batch.predict_positions;
  part.num_rows = batch.num_targets();
  return part;
}

// Makes a pack of `samples` alone, and notes which rows of the batch are theirs.
DistillObjective::Part DistillObjective::part_of(const data::MicroBatch& batch,
                                                 const std::vector<size_t>& samples) {
  std::vector<data::Sample> chosen;
  std::vector<bool> wanted(batch.samples.size(), false);
  for (const size_t s : samples) {
    chosen.push_back(batch.samples[s]);
    wanted[s] = true;
  }

  // Rows are in the order of sequences, and a sequence is a sample.
  std::vector<int64_t> rows;
  const at::Tensor positions = batch.predict_positions.contiguous();
  const int64_t* position = positions.const_data_ptr<int64_t>();
  size_t sequence = 0;
  for (int64_t r = 0; r < positions.numel(); ++r) {
    while (position[r] >= batch.tokens.cu_seqlens[sequence + 1])
      ++sequence;
    if (wanted[sequence]) rows.push_back(r);
  }

  const data::MicroBatch sub = data::make_micro_batch(std::move(chosen));
  Part part;
  part.tokens = sub.tokens;
  part.positions = sub.predict_positions;
  part.rows = at::tensor(rows, at::kLong);
  part.num_rows = static_cast<int64_t>(rows.size());
  RETORT_CHECK(part.num_rows == sub.num_targets());
  return part;
}

// Makes one part for each (teacher, weight) with the samples it answers, since a part's loss has
// one weight. A teacher that answers every sample with the same weight sees the pack as it is.
std::vector<DistillObjective::Part> DistillObjective::split(const data::MicroBatch& batch,
                                                            bool all_taught) const {
  // The samples of each teacher, by its weight in them.
  std::map<std::pair<size_t, double>, std::vector<size_t>> members;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const auto weights = weights_of(batch.samples[s]);
    if (all_taught && std::ranges::all_of(weights, [](double weight) { return weight == 0; }))
      refuse_untaught(batch.samples[s]);
    for (size_t t = 0; t < weights.size(); ++t)
      if (weights[t] > 0) members[{t, weights[t]}].push_back(s);
  }

  std::vector<Part> parts;
  for (const auto& [key, samples] : members) {
    const bool all = samples.size() == batch.samples.size();
    Part part = all ? whole_part(batch) : part_of(batch, samples);
    part.teacher = key.first;
    part.weight = key.second;
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<DistillObjective::Part> DistillObjective::ask(const data::MicroBatch& batch,
                                                          uint64_t request_id, int64_t step,
                                                          bool all_taught) {
  std::vector<Part> parts = split(batch, all_taught);
  for (Part& part : parts)
    if (part.num_rows > 0)
      part.pending =
          teachers_[part.teacher].client->send(request_id, step, part.tokens, part.positions);
  return parts;
}

void DistillObjective::announce(int64_t step, const data::BatchStream::Step& batches) {
  if (!options_.asks) return;
  const uint64_t count = batches.micro_batches.size();
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = request_id(step, i, count, options_.dp_rank, options_.dp_size);
    in_flight_.push_back(ask(batches.micro_batches[i], id, step, /*all_taught=*/true));
    on_policy_.push_back(options_.is_on_policy && options_.is_on_policy(step));
  }
}

// Names the ids of the largest logits at each row, of those ids that both know, in the order of a
// teacher's top-k. They are constants of the loss. One product with the head serves all teachers
// that know as many.
void DistillObjective::name_ids(std::vector<Part>& parts, const models::Head& head,
                                const at::Tensor& rows) {
  std::map<int64_t, at::Tensor> largest;  // by the number of ids that both know
  for (Part& part : parts) {
    if (part.num_rows == 0) continue;
    roles::FrozenAnswers& client = *teachers_[part.teacher].client;
    at::Tensor& ids = largest[client.common_vocab()];
    if (!ids.defined())
      ids = roles::make_payload(rows.detach(), head.weight.detach(),
                                {.kind = roles::PayloadKind::kTopK,
                                 .top_k = options_.named_ids,
                                 .common_vocab = client.common_vocab()},
                                {}, head.vocab, head.softcap)
                .ids;
    client.name_ids(part.pending, part.rows.defined() ? ids.index_select(0, part.rows) : ids);
  }
}

losses::TeacherShare DistillObjective::receive(Part& part, const at::Device& device,
                                               StepSums& sums) {
  TeacherRoute& route = teachers_[part.teacher];
  roles::FrozenAnswers& client = *route.client;
  // The teacher's head comes to the device once, with its first answer.
  if (!route.head.defined() && client.head_weight().defined())
    route.head = client.head_weight().to(device);

  const roles::Payload payload =
      client.receive(std::move(part.pending), &sums.values[kWaitSeconds]);
  sums.values[kTailBound] += part.weight * payload.tail_bound_sum;
  sums.values[kMaskedMass] += part.weight * payload.masked_mass_sum;
  return {.signal = to_signal(payload, route.head),
          .rows = part.rows,
          .weight = part.weight,
          .common_vocab = client.common_vocab()};
}

at::Tensor DistillObjective::batch_loss(const models::Head& head, const at::Tensor& rows,
                                        const data::MicroBatch& batch, StepSums& sums) {
  RETORT_CHECK(!in_flight_.empty()) << "loss_sum of a micro-batch that was not announced";
  std::vector<Part> parts = std::move(in_flight_.front());
  in_flight_.pop_front();
  losses::DivergenceOptions divergence = options_.divergence;
  // Cross-entropy on the student's own draws would teach it what it says already.
  if (on_policy_.front()) divergence.kd_ratio = 1.0;
  on_policy_.pop_front();
  sums.count += static_cast<double>(batch.num_targets());
  // The sums of a step are added over dp and pp, not over tp, but each tp rank asks for a part of
  // its own.
  sums.values[kBytes] +=
      peers_.new_bytes() * (head.vocab.group == nullptr ? 1 : head.vocab.group->size());
  if (batch.num_targets() == 0)
    return losses::unread_cross_entropy(rows, head.weight, {}, batch.targets, 0, head.vocab,
                                        head.softcap)
        .loss_sum;

  return loss_of_parts(std::move(parts), head, rows, batch.targets, divergence, sums);
}

at::Tensor DistillObjective::loss_of_parts(std::vector<Part> parts, const models::Head& head,
                                           const at::Tensor& rows, const at::Tensor& targets,
                                           const losses::DivergenceOptions& divergence,
                                           StepSums& sums) {
  // All teachers are told their ids before the first is waited for, so that they answer side by
  // side.
  if (options_.named_ids > 0) name_ids(parts, head, rows);

  std::vector<losses::TeacherShare> shares;
  std::vector<double> weights;
  for (Part& part : parts)
    if (part.num_rows > 0) {
      shares.push_back(receive(part, rows.device(), sums));
      weights.push_back(part.weight);
    }
  const auto result = losses::unread_distill_shares(rows, head.weight, {}, targets, shares,
                                                    divergence, head.vocab, head.softcap);

  // A row's weights sum to 1, so what does not depend on the teacher counts once.
  sums.late.add(result.numbers, [&sums, weights](const double* numbers) {
    for (const double weight : weights) {
      const auto of_share = losses::DistillSums::of(numbers);
      sums.values[kKd] += weight * of_share.kd_sum;
      sums.values[kCe] += weight * of_share.ce_sum;
      sums.values[kTeacherMass] += weight * of_share.teacher_mass_sum;
      sums.values[kStudentMass] += weight * of_share.student_mass_sum;
      sums.values[kMaskedMass] += weight * of_share.masked_mass_sum;
      sums.values[kEntropy] += weight * of_share.entropy_sum;
      sums.values[kCorrect] += weight * static_cast<double>(of_share.num_correct);
      numbers += losses::DistillSums::kNumbers;
    }
  });
  return result.loss_sum;
}

void DistillObjective::evaluate(const roles::Trainer& student,
                                const std::vector<data::MicroBatch>& batches,
                                parallel::World& world, MetricsRow& row) {
  const c10::NoGradGuard no_grad;
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  const uint64_t count = batches.size();
  std::deque<std::vector<Part>> asked;
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    // Teachers are asked ahead, so that they answer while the student computes. A held-out row may
    // have no teacher: it does not count then.
    for (; options_.asks && next < count && next <= i + kEvaluatedAhead; ++next) {
      const uint64_t id = request_id(row.step, next, count, options_.dp_rank, options_.dp_size);
      asked.push_back(
          ask(batches[next], kFirstEvaluationRequest + id, row.step, /*all_taught=*/false));
    }
    std::vector<Part> parts;
    if (options_.asks) {
      parts = std::move(asked.front());
      asked.pop_front();
    }

    const data::MicroBatch& batch = batches[i];
    if (batch.num_targets() == 0) continue;
    const at::Tensor rows = student.hidden(models::wanting(batch.tokens, batch.predict_positions));
    if (!rows.defined()) continue;  // the pipeline ends elsewhere
    double taught = 0;              // rows, each by the weights of its parts
    for (const Part& part : parts)
      taught += part.weight * static_cast<double>(part.num_rows);
    sums.count += taught;
    if (taught > 0)
      loss_of_parts(std::move(parts), student.decoder().head(), rows, batch.targets,
                    options_.divergence, sums);
  }
  sums.late.read();
  peers_.new_bytes();  // which are no step's

  all_reduce(sums, world.dp_pp());
  if (sums.count > 0) row.add("eval_kd_loss", sums.values[kKd] / sums.count);
}

void DistillObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  static constexpr std::array<MeanMetric, 7> kMetrics{{{"kd_loss", kKd},
                                                       {"ce_loss", kCe},
                                                       {"teacher_mass", kTeacherMass},
                                                       {"student_mass", kStudentMass},
                                                       {"masked_mass", kMaskedMass},
                                                       {"entropy", kEntropy},
                                                       {"mean_token_accuracy", kCorrect}}};
  add_means(kMetrics, sums, sums.count, row);
  if (sums.values[kTailBound] > 0)
    row.add("teacher_tail_bound", sums.values[kTailBound] / sums.count);
  // The sums are those of all dp ranks, so this is what one of them waited on average.
  row.add("teacher_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
  peers_.add_bytes_per_token(row, sums.values[kBytes], sums.num_tokens);
  if (options_.asks) peers_.add_calls(row);  // else this rank asks no teacher

  // Vocabularies that do not fit end the run.
  const double masked = sums.values[kMaskedMass] / sums.count;
  if (masked > options_.max_masked_mass)
    throw Error(ErrorCode::kInvalidArgument,
                "the teacher puts " + std::to_string(masked) +
                    " of its probability on ids above the common vocabulary (limit " +
                    std::to_string(options_.max_masked_mass) +
                    "): student and teacher vocabularies do not fit; give the student the "
                    "teacher's tokens (retort vocab add), or take a teacher with the student's "
                    "tokenizer");
}

}  // namespace retort::recipes
