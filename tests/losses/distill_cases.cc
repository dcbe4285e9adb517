#include "tests/losses/distill_cases.h"

namespace retort::losses {
namespace {

std::vector<DivergenceOptions> every_loss() {
  using T = DivergenceType;
  std::vector<DivergenceOptions> all;
  for (T type : {T::kForwardKl, T::kReverseKl, T::kJsd, T::kSkewedKl, T::kSkewedReverseKl, T::kTvd})
    all.push_back({.type = type});
  for (double beta : {0.0, 0.1, 1.0})
    all.push_back({.type = T::kJsd, .beta = beta});
  all.push_back({.type = T::kSkewedKl, .skew_lambda = 0.0});
  all.push_back({.type = T::kSkewedReverseKl, .skew_lambda = 0.7});
  return all;
}

// Temperature, mixture with cross-entropy and chunk size; the first shares the student's softmax
// with cross-entropy.
std::vector<DivergenceOptions> variants(DivergenceOptions options) {
  std::vector<DivergenceOptions> all(3, options);
  all[0].kd_ratio = 0.6;
  all[1].chunk_tokens = 7;
  all[2].temperature = 1.7;
  all[2].kd_ratio = 0.3;
  all[2].scale_by_temperature_squared = true;
  return all;
}

void add(DistillCases& out, size_t at, const char* payload, const TeacherSignal& signal,
         const DivergenceOptions& options) {
  const std::string name =
      "problem " + std::to_string(at) + " " + payload + " " + std::string(enum_name(options.type)) +
      " " + std::string(enum_name(options.tail)) + " beta " + std::to_string(options.beta) +
      " lambda " + std::to_string(options.skew_lambda) + " T " +
      std::to_string(options.temperature) + " kd_ratio " + std::to_string(options.kd_ratio);
  // p (g - E_p[g]) with g nearly the same wherever p is large: float32 keeps one digit less
  // (aten_path_test measures it).
  const bool cancels =
      options.type == DivergenceType::kSkewedReverseKl && options.skew_lambda > 0.5;
  out.cases.push_back({name, at, signal, options, cancels ? 4e-6 : 1e-6});
}

}  // namespace

DistillCases distill_cases() {
  const auto problem = [](int64_t vocab, int64_t teacher_vocab, int64_t common, uint64_t seed) {
    Problem p = random_problem({.rows = 19,
                                .vocab = vocab,
                                .width = 12,
                                .teacher_vocab = teacher_vocab,
                                .teacher_width = 9,
                                .bias = true},
                               seed);
    p.common = common;
    return p;
  };

  // Teachers with as many ids as the student, more and fewer; the last has hardly any.
  DistillCases out;
  out.problems = {problem(67, 67, 0, 51), problem(67, 80, 61, 52), problem(67, 50, 40, 53),
                  problem(5, 6, 5, 54)};

  // Every payload with every divergence, and top-k's other tails.
  for (size_t at = 0; at < out.problems.size(); ++at) {
    const Problem& p = out.problems[at];
    const int64_t common = p.common > 0 ? p.common : p.weight.size(0);
    for (DivergenceOptions options : every_loss()) {
      options.common_vocab = p.common;
      for (const DivergenceOptions& o : variants(options)) {
        add(out, at, "hidden", hidden_signal(p), o);
        add(out, at, "full", full_signal(p, o.temperature), o);
        add(out, at, "top-3", top_k_signal(p, o.temperature, 3), o);
      }
      add(out, at, "top-all", top_k_signal(p, 1, common), options);
    }
    for (const Tail tail : {Tail::kRenormalize, Tail::kDrop})
      for (const DivergenceOptions& o : variants({.tail = tail, .common_vocab = p.common}))
        for (const int64_t k : {int64_t{4}, common})
          add(out, at, "top-k", top_k_signal(p, o.temperature, k), o);

    // Draws estimate forward KL.
    for (const DivergenceOptions& o : variants({.common_vocab = p.common}))
      for (const bool replacement : {false, true})
        for (const int64_t n : {int64_t{3}, common + 4})
          add(out, at, replacement ? "drawn again" : "drawn",
              sampled_signal(p, o.temperature, n, replacement, 7), o);
  }
  return out;
}

std::vector<std::pair<std::string, double>> numbers_of(const Outcome& outcome) {
  const DistillResult& r = outcome.result;
  return {{"loss", outcome.loss},
          {"count", static_cast<double>(r.count)},
          {"kd", r.kd_sum},
          {"ce", r.ce_sum},
          {"teacher mass", r.teacher_mass_sum},
          {"student mass", r.student_mass_sum},
          {"masked mass", r.masked_mass_sum},
          {"entropy", r.entropy_sum},
          {"correct", static_cast<double>(r.num_correct)}};
}

}  // namespace retort::losses
