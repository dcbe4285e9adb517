// The typed remote methods of a generator: samples from prompts, and weights that replace its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "roles/teacher/methods.h"
#include "rpc/method.h"

namespace retort::roles {

// What an episode begins with: its environment writes the prompt.
struct EpisodeStart {
  uint64_t seed = 0;  // of the environment, equal for all completions of the prompt
  std::string row;    // JSON object: the row's columns, as the environment gets them
  // JSON array: the conversation that the prompt begins with; empty: the row's own `messages`.
  std::string messages;
  template <class A>
  void serialize(A& archive) {
    archive(seed, row, messages);
  }
};

// P prompts, G completions of each: S = P * G.
struct GenerateRequest {
  uint64_t request_id = 0;  // unique among the caller's
  int64_t step = 0;
  // the weights to draw with; a request for coming ones waits for them
  uint64_t weight_version = 0;
  at::Tensor prompt_ids;  // [N] int32
  at::Tensor cu_seqlens;  // [P+1] int32
  int64_t num_generations = 1;
  at::Tensor sample_ids;  // [S] int64, the noise of each completion
  models::DrawOptions draw;
  // [P], or empty. Episodes have prompts without ids; max_new_tokens bounds each of their turns.
  std::vector<EpisodeStart> episodes;
  // So many tokens at the end of each prompt are already of its samples, which go on here; an
  // engine that is not ours draws with other noise then. 0: the samples begin.
  int64_t continues = 0;

  template <class A>
  void serialize(A& archive) {
    archive(request_id, step, weight_version, prompt_ids, cu_seqlens, num_generations, sample_ids,
            draw, episodes, continues);
  }
};

// n of a request's S completions, T tokens in all. A collect is answered with some of them, in the
// order in which they ended; receivers put them together. Bytes: 12 a token, 9 a completion, 4 more
// for the last offset; of episodes their spans (13 B each, 4 a completion) and texts.
struct Samples {
  uint64_t request_id = 0;
  std::string generator;        // "generator/0"
  uint64_t weight_version = 0;  // that drew every token, or of what spans say the newest
  std::string sequence_hash;    // of the request's prompts (sequence_hash in payload.h)
  at::Tensor indices;           // [n] int32, of [0, S): prompt by prompt, G of each
  at::Tensor token_ids;         // [T] int32
  at::Tensor cu_seqlens;        // [n+1] int32
  // [T] float32, or [0] where an engine that is not ours does not say
  at::Tensor logps;           // under the model: temperature 1, whole vocabulary
  at::Tensor sampling_logps;  // under the distribution that was drawn from
  at::Tensor finish_reasons;  // [n] uint8: models::FinishReason
  // models::Span of each completion, P in all; all [0] where every token is the model's, drawn with
  // weight_version. No version is above weight_version.
  at::Tensor span_counts;             // [n] int32; 0: as if there were none of any
  at::Tensor span_lengths;            // [P] int32
  at::Tensor span_sources;            // [P] uint8: models::SpanSource
  at::Tensor span_versions;           // [P] int64
  std::vector<std::string> episodes;  // [n], or empty: models::Completion::episode
  // between the request's start and the end of the latest of these; others may have been drawn
  // beside it
  double seconds = 0;
  bool last = false;  // there are no others after these

  template <class A>
  void serialize(A& archive) {
    archive(request_id, generator, weight_version, sequence_hash, indices, token_ids, cu_seqlens,
            logps, sampling_logps, finish_reasons, span_counts, span_lengths, span_sources,
            span_versions, episodes, seconds, last);
  }
};

struct CollectRequest {
  uint64_t request_id = 0;
  // How many completions the caller has, in the order in which they were given to it since it
  // submitted the request.
  int64_t have = 0;
  template <class A>
  void serialize(A& archive) {
    archive(request_id, have);
  }
};

// The part of a whole parameter that a rank holds: in each dimension d the indices [begin[d],
// begin[d] + size[d]).
struct WeightSlice {
  std::string name;
  std::vector<int64_t> shape;  // of the whole parameter
  std::vector<int64_t> begin, size;

  bool operator==(const WeightSlice&) const = default;
  template <class A>
  void serialize(A& archive) {
    archive(name, shape, begin, size);
  }
};

struct GeneratorInfo {
  std::string name;
  uint64_t weight_version = 0;
  uint64_t committed_version = 0;  // of weights that are committed and wait for their turn, or 0
  int64_t vocab_rows = 0, max_position_embeddings = 0;
  std::string vocabulary_fingerprint;  // of the whole tokenizer
  // parameters_hash: of the whole model, whatever part of it this rank holds
  std::string parameters;
  // where an adapter alone is pushed, of the weights that it is added to, as in its model's files
  // (models::weights_fingerprint); else ""
  std::string base_weights;
  std::string dtype;
  int64_t tp = 1, tp_rank = 0;      // ranks of the replica, and which of them this is
  std::vector<WeightSlice> slices;  // that this rank holds
  template <class A>
  void serialize(A& archive) {
    archive(name, weight_version, committed_version, vocab_rows, max_position_embeddings,
            vocabulary_fingerprint, parameters, base_weights, dtype, tp, tp_rank, slices);
  }
};

// Elements of one parameter: in each dimension d the whole's indices [begin[d], begin[d] +
// values.size(d)).
struct WeightPart {
  std::string name;
  std::vector<int64_t> begin;
  at::Tensor values;
  uint64_t checksum = 0;  // seal(): over values, begin and name

  template <class A>
  void serialize(A& archive) {
    archive(name, begin, values, checksum);
  }
};
// A bucket goes from one trainer rank to one generator rank.
struct WeightBucket {
  uint64_t version = 0;
  int64_t sender = 0;  // position among the trainer ranks that send
  int64_t index = 0;   // the sender's buckets of a version for this receiver are numbered from 0
  std::vector<WeightPart> parts;
  // The peer that pushes, where another replica passes the bucket on for it; empty: the caller.
  std::string origin;

  template <class A>
  void serialize(A& archive) {
    archive(version, sender, index, parts, origin);
  }
};
// To a generator rank that has this bucket: another one, at `address`, is to get it from there.
struct PassWeights {
  uint64_t version = 0;
  int64_t sender = 0;
  int64_t index = 0;
  std::string to, address;

  template <class A>
  void serialize(A& archive) {
    archive(version, sender, index, to, address);
  }
};
struct PassReply {
  bool passed = false;  // it arrived there, was checked, and is staged
  std::string why;      // not
  template <class A>
  void serialize(A& archive) {
    archive(passed, why);
  }
};
// What a sender has sent to rank `receiver` of a replica.
struct WeightReceipt {
  int64_t receiver = 0, sender = 0;
  int64_t buckets = 0;
  uint64_t checksum = 0;  // over the parts' checksums in order

  template <class A>
  void serialize(A& archive) {
    archive(receiver, sender, buckets, checksum);
  }
};
// To the first rank of a replica.
struct CommitWeights {
  uint64_t version = 0;
  std::vector<WeightReceipt> receipts;  // of every rank of the replica, by every sender
  bool abort = false;                   // give up samples in work instead of finishing them

  template <class A>
  void serialize(A& archive) {
    archive(version, receipts, abort);
  }
};
struct CommitReply {
  uint64_t version = 0;  // now in use
  // as the replica's ranks computed it from what arrived: weights_checksum of the commit's receipts
  uint64_t checksum = 0;
  template <class A>
  void serialize(A& archive) {
    archive(version, checksum);
  }
};

inline constexpr rpc::Method<Empty, GeneratorInfo> kGeneratorInfo{"generator.info", true};
// Takes a request into the queue; the reply says that it stands there. It is forgotten when the
// caller's connection ends before the caller has said that it has all samples; one that is there
// and comes again is taken for the same.
inline constexpr rpc::Method<GenerateRequest, Empty> kGenerateSubmit{"generator.submit"};
// The samples of a request of the same caller beyond those that it has: the reply comes as soon as
// there is one, with those that there are then. Asked again with the same `have` it gives them
// again. One that has all of them says so with a last collect, after which the request is
// forgotten. kCancelled when weights were committed with `abort` meanwhile, kMismatch when its
// weights had been replaced already.
inline constexpr rpc::Method<CollectRequest, Samples> kGenerateCollect{"generator.collect", true};
// Target log-probabilities of given tokens under the weights in use: ForwardRequest with
// PayloadKind::kTargetLogProbs.
inline constexpr rpc::Method<ForwardRequest, Payload> kGeneratorScore{"generator.score", true};
// The reply comes, whatever is drawn meanwhile, when the bucket was checked and is staged.
inline constexpr rpc::Method<WeightBucket, Empty> kWeightsBucket{"weights.bucket"};
// Passes on a bucket that is staged here and not in use yet. The reply comes when it has arrived or
// cannot; errors of its own are those of a peer that is lost.
inline constexpr rpc::Method<PassWeights, PassReply> kWeightsPass{"weights.pass"};
// Asked once all buckets were answered: kUnavailable when not all of them are there. The reply
// comes when the weights are in use, at once when they are already. When a caller is lost or
// cancels before that, they are not committed; what lost peers sent of them is thrown away.
inline constexpr rpc::Method<CommitWeights, CommitReply> kWeightsCommit{"weights.commit"};

}  // namespace retort::roles
