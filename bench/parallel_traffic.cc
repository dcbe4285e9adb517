#include "bench/parallel_traffic.h"

#include "models/parameters/placement.h"

namespace retort::bench {
namespace {

constexpr double kFloat = 4;
constexpr double kDouble = 8;
constexpr double kMessageHeader = 64;

// What the residual stream sends in tensor-parallel blocks: in `layers` of them, on the first stage
// in the embedding, on the last stage into the head.
void add_tensor_parallel(std::vector<Traffic>& list, const StepSizes& s, double layers, bool first,
                         bool last, double bytes) {
  const auto add = [&](const char* what, Operation operation, double count) {
    list.push_back(
        {what, "tp", operation, s.layout.tp, bytes, count * static_cast<double>(s.micro_batches)});
  };
  if (!s.layout.sequence_parallel) {
    add("forward: behind o_proj, down_proj; embedding", Operation::kAllReduce, 2 * layers + first);
    add("backward: into q k v, gate up; hidden", Operation::kAllReduce, 2 * layers + last);
    return;
  }
  add("forward: behind o_proj, down_proj; embedding", Operation::kReduceScatter,
      2 * layers + first);
  add("forward: into q k v, gate up; hidden", Operation::kAllGather, 2 * layers + last);
  add("backward: into q k v, gate up; hidden", Operation::kReduceScatter, 2 * layers + last);
  add("backward: behind o_proj, down_proj; embedding", Operation::kAllGather, 2 * layers + first);
  add("backward: inputs of q k v, gate up again", Operation::kAllGather, 2 * layers);
}

void add_loss(std::vector<Traffic>& list, const StepSizes& s) {
  const auto micro_batches = static_cast<double>(s.micro_batches);
  const auto tokens = static_cast<double>(s.tokens);
  list.push_back({"loss: vote", "tp", Operation::kAllReduce, s.layout.tp, kDouble, micro_batches});
  list.push_back(
      {"loss: maxima", "tp", Operation::kAllReduce, s.layout.tp, kFloat * tokens, micro_batches});
  list.push_back({"loss: sum, target, entropy, hit", "tp", Operation::kAllReduce, s.layout.tp,
                  4 * kDouble * tokens, micro_batches});
}

void add_gradients(std::vector<Traffic>& list, const StepSizes& s) {
  const double bytes = kFloat * s.parameters;
  if (s.partial_copies > 0)
    list.push_back({"gradients of norms, of shared heads", "tp", Operation::kAllReduce, s.layout.tp,
                    kFloat * s.partial_copies, 1});
  if (s.layout.distributed_optimizer) {
    list.push_back({"gradients", "dp", Operation::kReduceScatter, s.layout.dp, bytes, 1});
    list.push_back({"gradient norm", "dp", Operation::kAllReduce, s.layout.dp, kDouble, 1});
    list.push_back({"parameters", "dp", Operation::kAllGather, s.layout.dp, bytes, 1});
  } else {
    list.push_back({"gradients", "dp", Operation::kAllReduce, s.layout.dp, bytes, 1});
  }
  list.push_back(
      {"gradient norm", "mp", Operation::kAllReduce, s.layout.tp * s.layout.pp, kDouble, 1});
  list.push_back({"loss", "dp_pp", Operation::kAllReduce, s.layout.dp * s.layout.pp, kDouble, 1});
}

}  // namespace

double Traffic::sent(Backend backend) const {
  const double n = static_cast<double>(ranks);
  const double share = (n - 1) / n;
  const double all = bytes * count;
  switch (operation) {
    case Operation::kAllReduce: return 2 * share * all;
    case Operation::kReduceScatter: return (backend == Backend::kC10dGloo ? 2 : 1) * share * all;
    case Operation::kAllGather: return share * all;
    case Operation::kMessage: return all;
  }
  return 0;
}

std::vector<Traffic> step_traffic(const models::ModelConfig& config, const StepSizes& s) {
  const models::Placement place{.pp = s.layout.pp, .stage = s.at.pp};
  const auto [begin, end] = place.layers(config.num_hidden_layers, 0);
  const double residual = kFloat * static_cast<double>(s.tokens * config.hidden_size);
  const auto micro_batches = static_cast<double>(s.micro_batches);
  std::vector<Traffic> list;

  if (s.layout.tp > 1)
    add_tensor_parallel(list, s, static_cast<double>(end - begin), place.first(), place.last(),
                        residual);
  if (s.layout.tp > 1 && place.last()) add_loss(list, s);

  // Between stages travels a tp rank's part of the residual stream, behind its header.
  const double message =
      residual / static_cast<double>(s.layout.sequence_parallel ? s.layout.tp : 1) + kMessageHeader;
  if (!place.last())
    list.push_back(
        {"hidden states to the next stage", "pp", Operation::kMessage, 2, message, micro_batches});
  if (!place.first())
    list.push_back({"their gradients back", "pp", Operation::kMessage, 2, message, micro_batches});

  add_gradients(list, s);
  return list;
}

double total_sent(const std::vector<Traffic>& traffic, Backend backend) {
  double sum = 0;
  for (const Traffic& item : traffic)
    sum += item.sent(backend);
  return sum;
}

}  // namespace retort::bench
