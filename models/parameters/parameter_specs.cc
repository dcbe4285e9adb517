#include "models/parameters/parameter_specs.h"

#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

// How a tensor of the model is spread over the tensor-parallel ranks.
enum class Split {
  kNone,      // whole on every rank
  kPerHead,   // whole on every rank, but each sees its own heads only: its gradient is a part
  kKeyValue,  // rows, by key and value heads; copies where there are fewer of them than ranks
  kRows,      // rows, evenly: by attention heads, by intermediate size
  kColumns,   // columns, evenly
  kVocab,     // rows, as parallel::VocabShard
  kCopied,    // whole on every rank, and so is its gradient, whatever is split
};

class SpecList {
 public:
  SpecList(const ModelConfig& config, const Placement& placement)
      : config_(config), placement_(placement) {}

  void add(std::string name, std::vector<int64_t> shape, ParameterKind kind, Split split) {
    ParameterSpec spec{std::move(name), shape, kind, {.shape = shape}};
    if (placement_.tp_size() > 1) cut(spec, split);
    specs_.push_back(std::move(spec));
  }
  void add_layer(int64_t layer);
  ParameterSpec& back() { return specs_.back(); }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  void cut(ParameterSpec& spec, Split split) const;

  const ModelConfig& config_;
  const Placement& placement_;
  std::vector<ParameterSpec> specs_;
};

void SpecList::cut(ParameterSpec& spec, Split split) const {
  const int64_t ranks = placement_.tp_size();
  const int64_t rank = placement_.tp_rank();
  parallel::ParameterShard& shard = spec.shard;
  // `shape` becomes that of the slice, `shard` says where the slice lies in the whole tensor.
  const auto slice = [&](int64_t dim, int64_t begin, int64_t size) {
    shard.dim = dim;
    shard.begin = begin;
    spec.shape[static_cast<size_t>(dim)] = size;
  };

  // A gradient is partial where a rank sees only some of the rows or heads that use the tensor.
  switch (split) {
    case Split::kNone:
    case Split::kPerHead:
      shard.copies = ranks;
      shard.partial_gradient = split == Split::kPerHead || placement_.sequence_parallel;
      break;
    case Split::kCopied: shard.copies = ranks; break;
    case Split::kRows: slice(0, rank * (spec.shape[0] / ranks), spec.shape[0] / ranks); break;
    case Split::kColumns: slice(1, rank * (spec.shape[1] / ranks), spec.shape[1] / ranks); break;
    case Split::kKeyValue: {
      const int64_t heads = config_.num_key_value_heads;
      shard.copies = heads < ranks ? ranks / heads : 1;
      shard.partial_gradient = shard.copies > 1;
      const int64_t slices = ranks / shard.copies;
      slice(0, rank / shard.copies * (spec.shape[0] / slices), spec.shape[0] / slices);
      break;
    }
    case Split::kVocab: {
      const int64_t total = spec.shape[0];
      const int64_t begin = parallel::vocab_begin(total, ranks, rank);
      slice(0, begin, parallel::vocab_end(total, ranks, rank) - begin);
      break;
    }
  }

  // One rank of those with the same slice counts, so that norms and checkpoints take each slice
  // once.
  shard.counted = rank % shard.copies == 0;
}

void SpecList::add_layer(int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config_.hidden_size;
  const int64_t inner = config_.intermediate_size;
  const int64_t q_size = config_.num_attention_heads * config_.head_dim;
  const int64_t kv_size = config_.num_key_value_heads * config_.head_dim;

  // Parameters are added by their names inside the layer. The bias of a row-parallel layer is whole
  // on every rank, because it is added after the sum.
  const auto norm = [&](const std::string& name, int64_t size, Split split) {
    add(prefix + name + ".weight", {size}, ParameterKind::kNorm, split);
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias,
                          Split split) {
    add(prefix + name + ".weight", {out, in}, ParameterKind::kMatrix, split);
    if (bias)
      add(prefix + name + ".bias", {out}, ParameterKind::kBias,
          split == Split::kColumns ? Split::kNone : split);
  };

  // Attention has column-parallel q, k and v and a row-parallel o_proj (Shoeybi et al. 2019).
  norm("input_layernorm", hidden, Split::kNone);
  linear("self_attn.q_proj", q_size, hidden, config_.attention_bias, Split::kRows);
  linear("self_attn.k_proj", kv_size, hidden, config_.attention_bias, Split::kKeyValue);
  linear("self_attn.v_proj", kv_size, hidden, config_.attention_bias, Split::kKeyValue);
  if (config_.qk_norm) {
    norm("self_attn.q_norm", config_.head_dim, Split::kPerHead);
    norm("self_attn.k_norm", config_.head_dim, Split::kPerHead);
  }
  linear("self_attn.o_proj", hidden, q_size, config_.attention_out_bias, Split::kColumns);

  // The MLP has column-parallel gate and up and a row-parallel down_proj.
  norm("post_attention_layernorm", hidden, Split::kNone);
  if (config_.output_norms) {
    norm("pre_feedforward_layernorm", hidden, Split::kNone);
    norm("post_feedforward_layernorm", hidden, Split::kNone);
  }
  linear("mlp.gate_proj", inner, hidden, config_.mlp_bias, Split::kRows);
  linear("mlp.up_proj", inner, hidden, config_.mlp_bias, Split::kRows);
  linear("mlp.down_proj", hidden, inner, config_.mlp_bias, Split::kColumns);
}

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config, const Placement& placement) {
  placement.validate(config);
  const std::vector<int64_t> table{config.vocab_size, config.hidden_size};
  const std::string embedding = "model.embed_tokens.weight";
  // The embedding of the first stage and the head of the last are copies of one table.
  const bool table_on_two_stages = config.tie_word_embeddings && placement.pp > 1;
  SpecList list(config, placement);

  // The list has the order of Decoder::parameters().
  if (placement.first()) {
    list.add(embedding, table, ParameterKind::kMatrix, Split::kVocab);
    list.back().shard.tied_stages = table_on_two_stages;
  }
  for (int64_t chunk = 0; chunk < placement.virtual_pp; ++chunk) {
    const auto [begin, end] = placement.layers(config.num_hidden_layers, chunk);
    for (int64_t layer = begin; layer < end; ++layer)
      list.add_layer(layer);
  }

  // The last stage has the final norm and the head. If a table is on two stages, the copy of the
  // first counts: in norms, in sums, and in what is saved.
  if (placement.last(placement.virtual_pp - 1)) {
    list.add("model.norm.weight", {config.hidden_size}, ParameterKind::kNorm, Split::kNone);
    if (config.classifies()) {
      list.add(kScoreHead, {config.classifier.num_labels, config.hidden_size},
               ParameterKind::kMatrix, Split::kCopied);
    } else if (!config.tie_word_embeddings) {
      list.add("lm_head.weight", table, ParameterKind::kMatrix, Split::kVocab);
    } else if (table_on_two_stages) {
      list.add(embedding, table, ParameterKind::kMatrix, Split::kVocab);
      list.back().shard.tied_stages = true;
      list.back().shard.counted = false;
    }
  }
  return list.take();
}

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  return parameter_specs(config, Placement{});
}

int64_t ModelConfig::num_parameters() const {
  int64_t total = 0;
  for (const ParameterSpec& spec : parameter_specs(*this)) {
    int64_t size = 1;
    for (int64_t dim : spec.shape)
      size *= dim;
    total += size;
  }
  return total;
}

}  // namespace retort::models
