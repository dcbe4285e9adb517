// A teacher at a temperature, from an engine whose log-probabilities are at temperature 1.
//
// A raw log-probability is the logit less one number that all tokens of a row share. So
// log_softmax(l / T) over the K ids that came is exactly the distribution at T renormalised on
// them; what is not known is the share of the other n = V - K ids, the tail. With p the raw
// probabilities, m = 1 - sum p_i the tail's raw mass, p_K the least of the K, a = 1 / T and
// Z = sum p_i^a over the K ids, the tail's mass U before it is normalised lies between
//
//   T > 1 (a < 1):  m p_K^(a-1)    <=  U  <=  n (m/n)^a     equal right: n equal ids (Jensen)
//   T < 1 (a > 1):  n (m/n)^a      <=  U  <=  m p_K^(a-1)   equal left: n equal ids;
//                                                           right: each is p_K or 0
//   T = 1:          U = m
//
// since no id of the tail is above p_K, and a power is concave below 1 and convex above it. The
// tail's share of the whole distribution at T then is U / (Z + U).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::engines {

struct TemperedTopK {
  at::Tensor log_probs;   // [R, K] float32 at T, renormalised on the K ids: their exp sums to 1
  at::Tensor least_tail;  // [R] float64: the least share of the other ids at T
  at::Tensor most_tail;   // [R] float64: the largest
  double mean_most_tail() const;  // over the rows, a metric; 0 of no rows
};

// log_probs: [R, K] float32 or float64 on the host, natural logarithms of the K most probable
// tokens of a row at temperature 1, in any order. vocab_rows: V, ids that have a probability.
// error: largest mistake of a log-probability, nats; it widens both bounds. It matters: of a row
// whose K ids have all mass but 1e-7, 150,000 others can have 0.1 at temperature 2.
// Memory: [R, K] float64, twice.
// Errors: kInvalidArgument for a temperature that is not positive, shapes, V < K; kCorrupt naming
// the row that has no number, one above 0, or more mass than 1.
TemperedTopK tempered_top_k(const at::Tensor& log_probs, double temperature, int64_t vocab_rows,
                            double error = 1e-6);

}  // namespace retort::engines
