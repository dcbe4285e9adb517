#include "tests/roles/layout_training.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <cmath>
#include <map>
#include <regex>
#include <sstream>

#include "models/checkpoint/adapter.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "tests/roles/nano_model.h"
#include "tests/support/relative_difference.h"

namespace retort::roles::testing {
namespace {

using Case = LayoutCase;
using parallel::Layout;
using parallel::World;

constexpr int kSteps = 5, kMicroBatches = 4;
constexpr double kTolerance = 1e-5;

at::Tensor slice_of(const at::Tensor& whole, const parallel::NamedParameter& part) {
  return whole.narrow(part.shard.dim, part.shard.begin, part.value.size(part.shard.dim));
}

// Random, and with an adapter whose B is not zero, if the case has one: the same for every
// placement.
models::Decoder decoder_of(const Case& c, const models::Placement& placement, at::Device device) {
  models::Decoder decoder =
      models::Decoder::random(windowed_nano(c.tied, c.family), 7, at::kFloat, placement, device);
  if (!c.lora) return decoder;
  models::LoraConfig lora{.r = 3, .lora_alpha = 5, .target_modules = {}};
  for (const std::string_view module : models::linear_modules())
    lora.target_modules.emplace_back(module);
  models::attach_new_adapter(decoder, lora, 7);
  for (const parallel::NamedParameter& factor : decoder.trained_parameters()) {
    if (!factor.name.ends_with("lora_B.weight")) continue;
    const std::vector<int64_t>& shape = factor.shard.shape;
    const at::Tensor whole = at::arange(shape[0] * shape[1], at::kFloat).sin().mul(0.1).view(shape);
    at::Tensor(factor.value).copy_(slice_of(whole, factor));
  }
  return decoder;
}

// One step over all micro-batches of the global batch that are this dp rank's. Returns the mean
// loss.
struct StepResult {
  double loss = 0;
  Trainer::Update update;
};
StepResult run_step(Trainer& trainer, World& world, int step) {
  const int64_t dp = world.dp().size(), mine = kMicroBatches / dp;
  std::vector<models::PackedTokens> batches;
  double count = 0, sum = 0;
  for (int64_t i = 0; i < kMicroBatches; ++i)
    count += static_cast<double>(tokens_of(step, i).num_tokens());
  for (int64_t i = 0; i < mine; ++i)
    batches.push_back(tokens_of(step, i * dp + world.coordinate().dp));
  const auto loss = [&](size_t i, const at::Tensor& hidden) {
    const at::Tensor value = loss_of(trainer.decoder().head(), hidden, batches[i]);
    sum += value.item<double>();
    return value;
  };
  trainer.begin_step();
  if (world.pp().size() > 1) {
    trainer.run_pipeline(
        batches.size(), [&](size_t i) -> const models::PackedTokens& { return batches[i]; }, loss);
  } else {
    for (size_t i = 0; i < batches.size(); ++i)
      trainer.backward(loss(i, trainer.hidden(batches[i])), i + 1 == batches.size());
  }
  StepResult result;
  result.loss = world.dp_pp().all_reduce(sum) / count;
  result.update = trainer.finish_step(count);
  return result;
}

void check(bool ok, const std::string& what, double value) {
  std::ostringstream text;
  text << what << " is off by " << value;
  if (!ok) throw std::runtime_error(text.str());
}

// Norms of parts, from all gradients of a trainer in one process, as they are after clipping.
std::map<std::string, double> part_norms(Trainer& trainer) {
  std::map<std::string, double> squares;
  for (size_t i = 0; i < trainer.buckets().size(); ++i) {
    const std::string& name = trainer.buckets().parameter(i).name;
    const std::regex form("(?:model\\.)?(layers\\.[0-9]+|[a-z_]+)\\..*");
    std::smatch part;
    check(std::regex_match(name, part, form), "the form of " + name, 1);
    const double norm = trainer.buckets().main_grad(i).to(at::kDouble).norm().item<double>();
    squares[part[1]] += norm * norm;
  }
  std::map<std::string, double> norms;
  for (const auto& [part, square] : squares)
    norms[part] = std::sqrt(square);
  return norms;
}

// In proportion to one another, as the reference's are clipped; their squares sum to grad_norm's.
void compare_parts(const std::string& where, const std::map<std::string, double>& expected,
                   Trainer& trainer, const Trainer::Update& update) {
  const auto got = trainer.layer_grad_norms();
  check(got.size() == expected.size(), where + "number of parts", 1);
  double square = 0, whole = 0;
  for (const auto& [part, norm] : got) {
    square += norm * norm;
    whole += expected.at(part) * expected.at(part);
  }
  check(std::abs(std::sqrt(square) / update.grad_norm - 1) <= 1e-6, where + "sum of parts",
        std::sqrt(square) / update.grad_norm - 1);
  for (const auto& [part, norm] : got) {
    const double off = norm / std::sqrt(square) - expected.at(part) / std::sqrt(whole);
    check(std::abs(off) <= kTolerance, where + "gradient norm of " + part, off);
  }
}

SingleRun run_as_one_process(const Case& c, const World& world, parallel::Device device) {
  World single_world({.role = "single",
                      .layout = {.device = device},
                      .device_module = world.options().device_module});
  Trainer single(decoder_of(c, {}, single_world.device()), single_world,
                 layout_trainer_options({}));
  SingleRun run;
  for (int step = 0; step < kSteps; ++step) {
    const StepResult result = run_step(single, single_world, step);
    SingleStep& kept = run.steps.emplace_back();
    kept.loss = result.loss;
    kept.grad_norm = result.update.grad_norm;
    kept.part_norms = part_norms(single);
    for (size_t i = 0; i < single.buckets().size(); ++i)
      kept.gradients[single.buckets().parameter(i).name] =
          single.buckets().main_grad(i).cpu().clone();
  }
  for (const auto& [name, value, shard] : single.decoder().trained_parameters())
    run.parameters[name] = value.detach().cpu().clone();
  return run;
}

void compare(const Case& c, World& world, const SingleRun& single) {
  const at::Device device = world.device();
  models::Decoder decoder = decoder_of(c, models::Placement::of(world), device);
  decoder.set_gradient_checkpointing(c.checkpointing);
  Trainer trainer(std::move(decoder), world, layout_trainer_options(c.layout));

  for (int step = 0; step < kSteps; ++step) {
    const SingleStep& expected = single.steps.at(static_cast<size_t>(step));
    const StepResult got = run_step(trainer, world, step);
    const std::string where = name_of(c) + " step " + std::to_string(step) + " ";
    check(std::abs(got.loss - expected.loss) <= kTolerance * expected.loss, where + "loss",
          got.loss - expected.loss);
    check(std::abs(got.update.grad_norm - expected.grad_norm) <= kTolerance * expected.grad_norm,
          where + "grad_norm", got.update.grad_norm - expected.grad_norm);
    compare_parts(where, expected.part_norms, trainer, got.update);

    const std::map<std::string, at::Tensor>& gradients = expected.gradients;
    // gradients that are rounding noise (a key bias has none) are measured against the largest
    double largest = 0;
    for (const auto& [name, gradient] : gradients)
      largest = std::max(largest, gradient.norm().item<double>());
    for (size_t i = 0; i < trainer.buckets().size(); ++i) {
      const parallel::NamedParameter& parameter = trainer.buckets().parameter(i);
      if (parameter.value.numel() == 0) continue;
      // with the sharded optimizer not all of it
      const parallel::GradBuckets::Part part = trainer.buckets().part(i);
      const at::Tensor whole = slice_of(gradients.at(parameter.name), parameter)
                                   .reshape({-1})
                                   .narrow(0, part.begin, part.size());
      const double scale = std::max(whole.norm().item<double>(), 1e-2 * largest);
      const double off =
          (trainer.buckets().main_grad_part(i).cpu() - whole).norm().item<double>() / scale;
      check(off <= kTolerance, where + "gradient of " + parameter.name, off);
    }
  }

  std::vector<at::Tensor> mine, whole;
  for (const parallel::NamedParameter& parameter : trainer.decoder().trained_parameters()) {
    mine.push_back(parameter.value.detach().cpu().reshape({-1}));
    whole.push_back(slice_of(single.parameters.at(parameter.name), parameter).reshape({-1}));
  }
  const double off = test::relative_difference(at::cat(mine), at::cat(whole), test::kMayBeZero);
  check(off <= kTolerance, name_of(c) + " parameters after the last step", off);

  // What stands beside an adapter has every bit that it began with.
  if (!c.lora) return;
  const models::Decoder start = decoder_of(c, models::Placement::of(world), device);
  const auto frozen = trainer.decoder().parameters(), before = start.parameters();
  for (size_t i = 0; i < frozen.size(); ++i)
    check(at::equal(frozen[i].value, before[i].value), "the frozen " + frozen[i].name, 1);
}

}  // namespace

std::string name_of(const Case& c) {
  const Layout& l = c.layout;
  return "tp" + std::to_string(l.tp) + " pp" + std::to_string(l.pp) + " dp" + std::to_string(l.dp) +
         (l.virtual_pp > 1 ? " vpp" + std::to_string(l.virtual_pp) : "") +
         (l.sequence_parallel ? " sp" : "") + (l.distributed_optimizer ? " zero" : "") +
         (c.tied ? " tied" : "") + (c.checkpointing ? " checkpointed" : "") +
         (c.lora ? " lora" : "") + " family " + std::to_string(static_cast<int>(c.family));
}

const std::vector<LayoutCase>& device_layouts() {
  static const std::vector<LayoutCase> all{
      {.layout = {.dp = 2}},
      {.layout = {.dp = 4}},
      {.layout = {.tp = 2}},
      {.layout = {.tp = 4}},
      {.layout = {.dp = 2, .distributed_optimizer = true}},
      {.layout = {.pp = 2}, .tied = true, .family = models::Family::kQwen2},
      {.layout = {.tp = 2, .sequence_parallel = true}},
      {.layout = {.tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}},
      {.layout = {.tp = 2, .pp = 2, .sequence_parallel = true, .virtual_pp = 2}, .tied = true},
      {.layout = {.tp = 2, .dp = 2}, .lora = true},
  };
  return all;
}

models::ModelConfig windowed_nano(bool tied, models::Family family) {
  models::ModelConfig config = nano_model(family, tied, 5);
  config.sliding_window = {0, 6, 0, 6, 0};
  return config;
}

models::PackedTokens tokens_of(int step, int64_t index) {
  std::vector<std::vector<int32_t>> rows;
  const int64_t count = index % 5 == 3 ? 0 : 1 + (index + step) % 3;
  for (int64_t r = 0; r < count; ++r) {
    std::vector<int32_t> row;
    for (int64_t i = 0; i < 3 + (5 * index + 7 * r + step) % 11; ++i)
      row.push_back(static_cast<int32_t>((i * i * 3 + 11 * r + 17 * index + 29 * step) % 67));
    rows.push_back(std::move(row));
  }
  return models::pack_rows(rows);
}

at::Tensor loss_of(const models::Head& head, const at::Tensor& hidden,
                   const models::PackedTokens& tokens) {
  const at::Tensor targets = (tokens.input_ids * 5 + 3).remainder(67);
  return losses::linear_cross_entropy(hidden, head.weight, {}, targets, 0, head.vocab).loss_sum;
}

Trainer::Options layout_trainer_options(const Layout& layout) {
  return {.adamw = {.eps = 1e-5, .weight_decay = 0.1, .no_decay_suffixes = {"norm.weight"}},
          .schedule = {.learning_rate = 3e-4, .max_steps = kSteps},
          .max_grad_norm = 0.5,
          .bucket_bytes = 4096};
}

void compare_with_one_process(const LayoutCase& c, World::Options options, SingleRuns& singles,
                              parallel::Device single_device) {
  const parallel::Device device = options.layout.device;
  options.layout = c.layout;
  options.layout.device = device;
  LayoutCase there = c;
  there.layout.device = device;
  World world(options);
  try {
    const auto key = std::tuple(c.tied, c.family, c.lora);
    if (!singles.contains(key)) singles[key] = run_as_one_process(there, world, single_device);
    compare(there, world, singles.at(key));
  } catch (const std::exception& e) {
    throw std::runtime_error(name_of(c) + ", rank " + std::to_string(options.rank) + ": " +
                             e.what());
  }
}

}  // namespace retort::roles::testing
