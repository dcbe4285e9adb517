#include "tests/engines/llamacpp/rewrites.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace retort::engines::test {
namespace {

using nlohmann::json;

constexpr double kNoChance = -double{std::numeric_limits<float>::max()};

void each_entry(json& answer, const std::function<void(json&)>& change) {
  if (!answer.contains("completion_probabilities")) return;
  for (json& entry : answer["completion_probabilities"]) {
    for (json& other : entry["top_logprobs"])
      change(other);
    change(entry);
  }
}

// Natural logarithm of the sum of probabilities.
double log_mass(const std::vector<double>& log_probs) {
  double sum = 0;
  for (const double value : log_probs)
    sum += std::exp(value);
  return std::log(sum);
}

// The entry of a position that lists the whole vocabulary, as if `num_top` had been asked for.
void redistribute(json& entry, int64_t vocab_rows, int64_t num_top, const Distribution& change) {
  json& top = entry["top_logprobs"];
  std::vector<double> log_probs(static_cast<size_t>(vocab_rows), kNoChance);
  for (const json& one : top)
    log_probs.at(one["id"]) = one["logprob"];
  log_probs = change(std::move(log_probs));

  for (json& one : top)
    one["logprob"] = log_probs.at(one["id"]);
  entry["logprob"] = log_probs.at(entry["id"]);
  std::stable_sort(top.begin(), top.end(), [](const json& a, const json& b) {
    return a["logprob"].get<double>() > b["logprob"].get<double>();
  });
  while (top.size() > static_cast<size_t>(num_top))
    top.erase(top.size() - 1);
}

}  // namespace

Proxying renumbered(std::vector<int32_t> ids) {
  std::vector<int32_t> back(ids.size());
  for (size_t id = 0; id < ids.size(); ++id)
    back.at(static_cast<size_t>(ids[id])) = static_cast<int32_t>(id);
  return {.upstream = {},
          .asked =
              [ids](json& asked) {
                for (json& id : asked["prompt"])
                  id = ids.at(id);
                for (json& bias : asked["logit_bias"])
                  bias[0] = ids.at(bias[0]);
              },
          .answered =
              [back](const json&, json& answer) {
                for (json& id : answer["tokens"])
                  id = back.at(id);
                each_entry(answer, [&](json& entry) { entry["id"] = back.at(entry["id"]); });
              },
          .instead = {},
          .everything = {}};
}

Proxying one_id_off(int64_t vocab_rows) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab_rows));
  std::iota(ids.begin(), ids.end(), 0);
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  return renumbered(std::move(ids));
}

Proxying another_tokenizer(int64_t vocab_rows) {
  constexpr int kSame = 270;
  std::vector<int32_t> ids(static_cast<size_t>(vocab_rows));
  std::iota(ids.begin(), ids.end(), 0);
  std::reverse(ids.begin() + kSame, ids.end());
  return renumbered(std::move(ids));
}

Proxying redistributed(int64_t vocab_rows, Distribution change) {
  return {.upstream = {},
          .asked =
              [vocab_rows](json& asked) {
                asked["n_probs"] = vocab_rows;
                asked.erase("response_fields");
              },
          .answered =
              [vocab_rows, change = std::move(change)](const json& asked, json& answer) {
                const int64_t num_top = asked["n_probs"];
                answer["generation_settings"]["n_probs"] = num_top;
                if (!answer.contains("completion_probabilities")) return;
                for (json& entry : answer["completion_probabilities"])
                  redistribute(entry, vocab_rows, num_top, change);
              },
          .instead = {},
          .everything = {}};
}

Distribution tempered(double temperature) {
  return [temperature](std::vector<double> log_probs) {
    for (double& value : log_probs)
      value = std::max(value / temperature, kNoChance);
    const double mass = log_mass(log_probs);
    for (double& value : log_probs)
      value = std::max(std::min(value - mass, 0.0), kNoChance);
    return log_probs;
  };
}

Distribution truncated(double top_p, bool renormalized) {
  return [top_p, renormalized](std::vector<double> log_probs) {
    std::vector<size_t> order(log_probs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return log_probs[a] > log_probs[b]; });

    std::vector<double> kept(log_probs.size(), kNoChance);
    double mass = 0;
    for (const size_t id : order) {
      if (mass >= top_p) break;
      kept[id] = log_probs[id];
      mass += std::exp(log_probs[id]);
    }
    if (!renormalized) return kept;
    for (double& value : kept)
      if (value > kNoChance) value = std::min(value - std::log(mass), 0.0);
    return kept;
  };
}

Proxying stale_cache() {
  struct Cache {
    std::mutex mutex;
    std::map<std::string, json> answers;
  };
  return {.upstream = {},
          .asked = {},
          .answered =
              [cache = std::make_shared<Cache>()](const json& asked, json& answer) {
                // The seed is no part of the key, because a cache is one of prompts.
                const std::string key = asked["prompt"].dump() + asked["logit_bias"].dump() +
                                        asked["n_predict"].dump() + asked["n_probs"].dump();
                const std::lock_guard lock(cache->mutex);
                answer = cache->answers.emplace(key, answer).first->second;
              },
          .instead = {},
          .everything = {}};
}

void each_log_prob(json& answer, const std::function<void(json&)>& change) {
  each_entry(answer, [&](json& entry) { change(entry["logprob"]); });
}

}  // namespace retort::engines::test
