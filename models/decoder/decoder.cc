#include "models/decoder/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/decoder/decoder_parameters.h"
#include "models/decoder/embedding_noise.h"
#include "models/decoder/layers.h"
#include "models/lora/lora_config.h"
#include "models/lora/lora_dropout.h"
#include "models/lora/lora_specs.h"
#include "models/ops/attention_plan.h"
#include "models/ops/functions.h"
#include "models/ops/packed.h"
#include "models/ops/rope.h"
#include "models/ops/softcap.h"
#include "models/ops/tensor_parallel.h"
#include "models/ops/vocab_table.h"
#include "models/parameters/parameter_specs.h"
#include "models/parameters/placement.h"
#include "parallel/gemm.h"
#include "parallel/parameter.h"
#include "parallel/staged_copy.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

using at::Tensor;

// Tokens on a device, and their cu_seqlens as int32, which its kernels read; undefined on a CPU.
struct TokensThere {
  PackedTokens tokens;
  Tensor cu_seqlens;
};

// One copy takes all numbers there, and nobody waits for it.
TokensThere tokens_on(const at::Device& device, const PackedTokens& given) {
  const Tensor offsets = device.is_cpu()
                             ? Tensor()
                             : at::tensor(given.cu_seqlens, at::TensorOptions().dtype(at::kInt));
  const std::vector<Tensor> there =
      parallel::staged_to(device, {given.input_ids, given.positions, given.wanted, offsets});
  return {.tokens = {there[0], there[1], given.cu_seqlens, given.forks, there[2], given.noise},
          .cu_seqlens = there[3]};
}

// Pads the indices to a row count that kernels of their device know (parallel::padded_rows). The
// rows that this adds are cut off at the end.
Tensor padded_indices(const Tensor& rows) {
  const int64_t padding = parallel::padded_rows(rows.numel(), rows.device().type()) - rows.numel();
  return padding > 0 ? at::constant_pad_nd(rows, {0, padding}) : rows;
}

Tensor residual_sum(const Residual& x) { return x.delta.defined() ? x.sum + x.delta : x.sum; }

// Returns the ends with the tensors that an adapter has in their places.
template <class Ends>
Ends adapted_ends(Ends ends, const std::vector<parallel::NamedParameter>& tensors) {
  for (const parallel::NamedParameter& tensor : tensors) {
    if (tensor.name == "model.embed_tokens.weight") ends.embedding = tensor.value;
    if (tensor.name == "model.norm.weight") ends.final_norm = tensor.value;
    if (tensor.name == "lm_head.weight" || tensor.name == kScoreHead) ends.head = tensor.value;
  }
  return ends;
}

}  // namespace

struct Decoder::Impl {
  // A layer and what is trained of it, [begin, end) of trained_parameters().
  struct Layer {
    LayerWeights weights;     // of AdapterState::kTrained
    LayerWeights own, first;  // beside an adapter: of kNone and kFirst
    size_t begin = 0;
    size_t end = 0;
    int64_t index = 0;  // in the whole model
    int64_t window = 0;
  };

  // These tensors stand before and behind the layers.
  struct Ends {
    at::Tensor embedding, final_norm, head;
  };

  ModelConfig config;
  Placement placement;
  TensorParallel tp;
  std::vector<parallel::NamedParameter> parameters;
  Ends ends, own_ends, first_ends;  // as Layer
  std::vector<std::vector<Layer>> chunks;
  // before_layers counts the trained_parameters() before the layers; after_layers says where those
  // behind them begin.
  size_t before_layers = 0, after_layers = 0;
  RotaryEmbedding rope;
  std::optional<RotaryEmbedding> sliding_rope;  // of layers with a window, if they have their own
  std::optional<LoraConfig> lora;
  std::vector<parallel::NamedParameter> adapter;
  std::vector<parallel::NamedParameter> first_adapter;
  AdapterState adapter_state = AdapterState::kTrained;
  double dropout = 0;
  uint64_t dropout_seed = 0;
  uint64_t dropout_step = 0;
  ParameterGate gate;
  int64_t checkpointing_every = 0;  // 0: never
  uint64_t shard_bytes = 0;

  at::Device device() const { return parameters.front().value.device(); }
  void bind();
  void bind_layer(int64_t layer, size_t& next, Layer& out) const;
  void bind_adapter();
  void bind_first_adapter();
  const LayerWeights& weights_of(const Layer& layer) const;
  const Ends& ends_of_state() const;
  parallel::VocabShard vocab() const;
  int64_t padded_tokens(const PackedTokens& tokens) const;
  at::Tensor embed(const PackedTokens& tokens) const;
  HeadShape head_shape() const;
  bool recomputes(const Layer& layer) const;
  DropoutRows dropout_of(const PackedTokens& tokens) const;
  at::Tensor forward(int64_t chunk, const PackedTokens& tokens, const at::Tensor& input) const;
};

// The layers' parameters follow one another in the order of parameter_specs.
void Decoder::Impl::bind_layer(int64_t layer, size_t& next, Layer& out) const {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  out.begin = next;
  for (; next < parameters.size() && parameters[next].name.starts_with(prefix); ++next) {
    const std::string inside = parameters[next].name.substr(prefix.size());
    for (size_t t = 0; t < static_cast<size_t>(LayerTensor::kCount); ++t)
      if (inside == layer_tensor_name(static_cast<LayerTensor>(t)))
        out.weights[static_cast<LayerTensor>(t)] = parameters[next].value;
  }
  out.end = next;
  out.index = layer;
  out.window = config.sliding_window[static_cast<size_t>(layer)];
}

// Points the layers at the parameters' tensors.
void Decoder::Impl::bind() {
  tp = {.group = placement.tp, .sequence = placement.sequence_parallel && placement.tp_size() > 1};

  // The parameters lie in the order of parameter_specs: embedding, the layers of each chunk, final
  // norm, head.
  size_t next = 0;
  if (placement.first()) ends.embedding = parameters[next++].value;
  before_layers = next;
  for (int64_t chunk = 0; chunk < placement.virtual_pp; ++chunk) {
    const auto [begin, end] = placement.layers(config.num_hidden_layers, chunk);
    chunks.emplace_back(static_cast<size_t>(end - begin));
    for (int64_t layer = begin; layer < end; ++layer)
      bind_layer(layer, next, chunks.back()[static_cast<size_t>(layer - begin)]);
  }
  after_layers = next;
  if (placement.last(placement.virtual_pp - 1)) {
    ends.final_norm = parameters[next++].value;
    // A head that is tied to the embedding is no parameter of its own.
    ends.head = next < parameters.size() ? parameters[next].value : ends.embedding;
  }
  rope = RotaryEmbedding(config.rope, config.head_dim, device());
  if (config.sliding_rope)
    sliding_rope = RotaryEmbedding(*config.sliding_rope, config.head_dim, device());
}

// Binds the adapter's tensors to the layers. They come in the model's order, so each layer takes
// the next ones.
void Decoder::Impl::bind_adapter() {
  // On the first stage tensors that belong to no layer stand before the layers, if there are any.
  // On another stage they belong behind them.
  before_layers = 0;
  while (before_layers < adapter.size() && layer_of(adapter[before_layers].name) < 0)
    ++before_layers;
  if (!placement.first()) before_layers = 0;

  size_t next = before_layers;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk) {
      layer.begin = next;
      layer.own = layer.weights;
      layer.weights = adapted_layer(layer.own, adapter, layer.index, lora->scaling(), next);
      layer.end = next;
    }

  // Behind the layers nothing may be left but the ends: a tensor of another layer would never be
  // read.
  after_layers = next;
  own_ends = ends;
  ends = adapted_ends(own_ends, adapter);
  const bool placed =
      std::all_of(adapter.begin() + static_cast<std::ptrdiff_t>(next), adapter.end(),
                  [](const parallel::NamedParameter& tensor) { return layer_of(tensor.name) < 0; });
  RETORT_CHECK(placed) << adapter.at(next).name << " belongs to no layer here";
}

void Decoder::Impl::bind_first_adapter() {
  size_t next = before_layers;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk)
      layer.first = adapted_layer(layer.own, first_adapter, layer.index, lora->scaling(), next);
  first_ends = adapted_ends(own_ends, first_adapter);
}

// Returns the weights of the state that use_adapter() chose. Without an adapter there is one state.
const LayerWeights& Decoder::Impl::weights_of(const Layer& layer) const {
  if (!lora || adapter_state == AdapterState::kTrained) return layer.weights;
  return adapter_state == AdapterState::kFirst ? layer.first : layer.own;
}

const Decoder::Impl::Ends& Decoder::Impl::ends_of_state() const {
  if (!lora || adapter_state == AdapterState::kTrained) return ends;
  return adapter_state == AdapterState::kFirst ? first_ends : own_ends;
}

// Nothing is dropped where nothing is trained: in evaluation, in passes of a reference, and while
// samples are drawn.
DropoutRows Decoder::Impl::dropout_of(const PackedTokens& tokens) const {
  const bool trains = adapter_state == AdapterState::kTrained && c10::GradMode::is_enabled();
  if (!lora || !trains) return {};
  return dropout_rows(tokens, padded_tokens(tokens), dropout, dropout_seed, dropout_step);
}

parallel::VocabShard Decoder::Impl::vocab() const {
  return {
      .group = placement.tp,
      .begin = parallel::vocab_begin(config.vocab_size, placement.tp_size(), placement.tp_rank()),
      .total = config.vocab_size};
}

int64_t Decoder::Impl::padded_tokens(const PackedTokens& tokens) const {
  const int64_t rows = parallel::padded_rows(tokens.num_tokens(), device().type());
  const int64_t ranks = tp.sequence ? placement.tp_size() : 1;
  return (rows + ranks - 1) / ranks * ranks;
}

Tensor Decoder::Impl::embed(const PackedTokens& tokens) const {
  const int64_t padding = padded_tokens(tokens) - tokens.num_tokens();
  const Tensor x = scaled_embedding(
      vocab_rows(ends_of_state().embedding, tokens.input_ids, padding, config, tp), config);
  if (tokens.noise.alpha == 0) return x;

  // The noise is formed for the rows of the residual stream that this rank has, and for no others.
  const int64_t first = tp.sequence ? placement.tp_rank() * x.size(0) : 0;
  return x + embedding_noise(tokens, first, x.size(0), x.size(1)).to(x.device(), x.scalar_type());
}

// Returns the shape of this rank's heads.
HeadShape Decoder::Impl::head_shape() const {
  const int64_t ranks = placement.tp_size();
  return {.heads = config.num_attention_heads / ranks,
          .kv_heads = std::max<int64_t>(1, config.num_key_value_heads / ranks),
          .head_dim = config.head_dim,
          .scale = config.score_scale(),
          .softcap = config.attn_logit_softcapping};
}

// Tells whether backward computes the layer again.
bool Decoder::Impl::recomputes(const Layer& layer) const {
  return checkpointing_every > 0 && layer.index % checkpointing_every == 0 &&
         c10::GradMode::is_enabled();
}

Tensor Decoder::Impl::forward(int64_t chunk, const PackedTokens& given, const Tensor& input) const {
  // The tokens go to the device of the parameters. The gate waits for parameters that arrive late.
  const auto [tokens, device_cu_seqlens] = tokens_on(device(), given);
  const int64_t count = tokens.num_tokens();
  const int64_t padding = padded_tokens(tokens) - count;
  const bool adapts = lora && adapter_state == AdapterState::kTrained;
  const auto use = [&](size_t begin, size_t end) {
    if (gate && begin < end && (adapts || !lora)) gate(begin, end);
  };

  // Here the residual stream enters the chunk. All its rows, padding too, have entries in the
  // rotary tables.
  if (placement.first(chunk)) use(0, before_layers);
  Residual x{placement.first(chunk) ? embed(tokens) : input, {}};
  const Tensor positions =
      padding > 0 ? at::constant_pad_nd(tokens.positions, {0, padding}) : tokens.positions;
  const RopeTable table = rope.table(positions, tokens);
  const RopeTable sliding = sliding_rope ? sliding_rope->table(positions, tokens) : table;
  LayerInputs inputs{&config, table, {}, tp, {}};
  inputs.dropout = inputs.dropout_behind = dropout_of(given);

  // Behind the last layer's attention only the wanted rows go on. With sequence parallelism a rank
  // has only some of the rows there, so they are chosen after the final norm instead.
  const std::vector<Layer>& layers = chunks.at(static_cast<size_t>(chunk));
  const bool chooses = placement.last(chunk) && tokens.wanted.defined();
  const bool last_layer_chooses = chooses && !tp.sequence && !layers.empty();

  // Layers with the same window share an attention plan.
  std::map<int64_t, AttentionPlanPtr> plans;
  for (const Layer& layer : layers) {
    AttentionPlanPtr& plan = plans[layer.window];
    if (!plan) {
      plan = c10::make_intrusive<AttentionPlan>(head_shape(), tokens.cu_seqlens, tokens.forks,
                                                layer.window, x.sum.options());
      plan->keep_cu_seqlens(device_cu_seqlens);
    }
    inputs.plan = plan;
    inputs.rope = layer.window > 0 ? sliding : table;
    if (last_layer_chooses && &layer == &layers.back()) {
      inputs.rows = padded_indices(tokens.wanted);
      inputs.dropout_behind = inputs.dropout.chosen(inputs.rows);
    }
    use(layer.begin, layer.end);
    const LayerWeights& weights = weights_of(layer);
    x = recomputes(layer)
            ? Residual{layer_forward_checkpointed(weights, inputs, residual_sum(x)), {}}
            : layer_forward(weights, inputs, x);
  }
  if (!placement.last(chunk)) return residual_sum(x);

  // The last stage norms the stream. Behind enter_block() every rank has all rows, and the padding
  // is cut off.
  use(after_layers, lora ? adapter.size() : parameters.size());
  const Tensor out = enter_block(norm_residual(x, ends_of_state().final_norm, config).second, tp);
  const int64_t rows = last_layer_chooses ? tokens.wanted.numel() : count;
  const Tensor unpadded = out.size(0) > rows ? out.narrow(0, 0, rows) : out;
  return chooses && !last_layer_chooses ? rows_at(unpadded, tokens.wanted) : unpadded;
}

Decoder::Decoder(ModelConfig config, std::vector<std::pair<std::string, Tensor>> tensors,
                 Placement placement)
    : impl_(std::make_unique<Impl>()) {
  impl_->config = std::move(config);
  impl_->placement = placement;
  impl_->parameters = match_parameters(impl_->config, placement, tensors);
  impl_->bind();
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Decoder Decoder::random(ModelConfig config, uint64_t seed, at::ScalarType dtype,
                        Placement placement, at::Device device) {
  // The parameters are to be trained, which tensors made in inference mode cannot be.
  const c10::InferenceMode ordinary(false);
  auto tensors = random_parameters(config, placement, seed, dtype, device);
  return Decoder(std::move(config), std::move(tensors), placement);
}

const ModelConfig& Decoder::config() const { return impl_->config; }
const Placement& Decoder::placement() const { return impl_->placement; }

Tensor Decoder::hidden(const PackedTokens& tokens) const {
  RETORT_CHECK(impl_->placement.pp == 1) << "hidden() of one stage of a pipeline";
  return forward(0, tokens, {});
}

Tensor Decoder::forward(int64_t chunk, const PackedTokens& tokens, const Tensor& input) const {
  check_packed_tokens(tokens, impl_->config.vocab_size);
  RETORT_CHECK(input.defined() != impl_->placement.first(chunk))
      << "the first chunk takes tokens, the others what comes before";
  return impl_->forward(chunk, tokens, input);
}

int64_t Decoder::residual_rows(const PackedTokens& tokens) const {
  return impl_->padded_tokens(tokens) / (impl_->tp.sequence ? impl_->placement.tp_size() : 1);
}

Head Decoder::head() const {
  const Tensor& weight = impl_->ends_of_state().head;
  RETORT_CHECK(weight.defined()) << "the head is where the pipeline ends";
  if (impl_->config.classifies())
    return {.weight = weight, .vocab = {}, .copies = impl_->placement.tp};
  return {
      .weight = weight, .vocab = impl_->vocab(), .softcap = impl_->config.final_logit_softcapping};
}

Tensor Decoder::head_weight() const {
  const Head found = head();
  if (found.softcap > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the model's logits are capped (final_logit_softcapping), which who has its head "
                "alone does not compute")
        .with("final_logit_softcapping", found.softcap);
  return found.weight;
}

Tensor Decoder::logits(const Tensor& hidden) const {
  RETORT_CHECK(impl_->placement.whole()) << "logits() of a part of a model";
  return softcapped(vocab_products(hidden.to(at::kFloat), impl_->ends_of_state().head),
                    impl_->config.final_logit_softcapping);
}

std::vector<parallel::NamedParameter> Decoder::parameters() const { return impl_->parameters; }

void Decoder::attach_adapter(const LoraConfig& lora,
                             const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  if (impl_->lora) detach_adapter();
  impl_->adapter = match_adapter(impl_->config, lora, impl_->placement, tensors, dtype(), device());
  impl_->lora = lora;
  impl_->bind_adapter();
}

void Decoder::attach_first_adapter(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  RETORT_CHECK(impl_->lora) << "a first state of an adapter that is not there";
  impl_->first_adapter =
      match_adapter(impl_->config, *impl_->lora, impl_->placement, tensors, dtype(), device());
  impl_->bind_first_adapter();
}

bool Decoder::has_first_adapter() const { return !impl_->first_adapter.empty(); }

// The layers are bound to their parameters again, as they were at first.
void Decoder::detach_adapter() {
  impl_->lora.reset();
  impl_->adapter.clear();
  impl_->first_adapter.clear();
  impl_->adapter_state = AdapterState::kTrained;
  impl_->dropout = 0;
  impl_->chunks.clear();
  impl_->bind();
}

const LoraConfig* Decoder::lora() const { return impl_->lora ? &*impl_->lora : nullptr; }
void Decoder::use_adapter(AdapterState state) {
  RETORT_CHECK(state != AdapterState::kFirst || has_first_adapter()) << "no first adapter is kept";
  impl_->adapter_state = state;
}

void Decoder::set_adapter_dropout(double lora_dropout, uint64_t seed) {
  RETORT_CHECK(impl_->lora) << "dropout of an adapter that is not there";
  impl_->lora->lora_dropout = impl_->dropout = lora_dropout;
  impl_->dropout_seed = seed;
}
void Decoder::set_dropout_step(uint64_t step) { impl_->dropout_step = step; }

std::vector<parallel::NamedParameter> Decoder::trained_parameters() const {
  return impl_->lora ? impl_->adapter : impl_->parameters;
}

void Decoder::set_requires_grad(bool value) {
  for (parallel::NamedParameter& parameter : impl_->parameters)
    parameter.value.set_requires_grad(value && !impl_->lora);
  for (parallel::NamedParameter& parameter : impl_->adapter)
    parameter.value.set_requires_grad(value);
}

at::Device Decoder::device() const { return impl_->device(); }
at::ScalarType Decoder::dtype() const { return impl_->parameters.front().value.scalar_type(); }
void Decoder::set_parameter_gate(ParameterGate gate) { impl_->gate = std::move(gate); }
void Decoder::set_gradient_checkpointing(bool value, int64_t every) {
  if (every < 1)
    throw Error(ErrorCode::kInvalidArgument, "every how many layers must be at least 1")
        .with("every", every);
  impl_->checkpointing_every = value ? every : 0;
}
uint64_t Decoder::shard_bytes() const { return impl_->shard_bytes; }
void Decoder::set_shard_bytes(uint64_t bytes) { impl_->shard_bytes = bytes; }

}  // namespace retort::models
