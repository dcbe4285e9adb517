// Generation for many sequences at once: continuous batching over a paged KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/request.h"

namespace retort::models {

struct EngineOptions {
  int64_t block_tokens = 16;                  // tokens of a block of the cache; a multiple of 16
  int64_t kv_cache_bytes = int64_t{1} << 30;  // size of the cache when num_blocks is 0
  int64_t num_blocks = 0;                     // blocks of the cache
  // rows of one forward; longer prompts are computed in pieces
  int64_t max_tokens_per_step = 512;
  int64_t max_sequences = 64;  // sequences in flight
  // start sequences of later requests while earlier ones still run
  bool merge_requests = false;
  // take over cached blocks of prompts with the same beginning
  bool share_prefixes = true;

  template <class V>
  void fields(V& visit) {
    visit("block_tokens", block_tokens, "tokens of a block of the KV cache");
    visit("kv_cache_bytes", kv_cache_bytes, "bytes of the KV cache");
    visit("num_blocks", num_blocks, "blocks of the KV cache; 0: from kv_cache_bytes");
    visit("max_tokens_per_step", max_tokens_per_step,
          "rows of one forward; longer prompts are computed in pieces");
    visit("max_sequences", max_sequences, "sequences in flight");
    visit("merge_requests", merge_requests,
          "start sequences of later requests while earlier ones still run");
    visit("share_prefixes", share_prefixes,
          "take over cached blocks of prompts with the same beginning");
  }
  void validate() const;  // kInvalidArgument naming the field
};

struct GenerationCallbacks {
  // Each token as it is chosen; completions are numbered prompt by prompt. May call submit and
  // cancel.
  std::function<void(size_t completion, int32_t token, float logp)> on_token;
  std::function<void(size_t completion, const Completion& result)> on_completion;
};

struct EngineStats {
  // Now:
  int64_t num_blocks = 0;
  int64_t used_blocks = 0;
  int64_t cached_blocks = 0;     // unused, but their contents are kept
  int64_t peak_used_blocks = 0;  // since construction
  int64_t kv_bytes = 0;          // of the cache: StepModel::kv_bytes

  // Since construction:
  int64_t steps = 0;          // forwards
  int64_t rows = 0;           // tokens computed in them
  int64_t reused_tokens = 0;  // prompt tokens taken over from the cache
  int64_t preemptions = 0;    // sequences that gave up their blocks to be computed again
};

// Text of token ids, for stop strings.
using Detokenizer = std::function<std::string(std::span<const int32_t>)>;

// Serves requests first in, first out; by default one at a time.
//
// Use: submit() requests, step() until they are finished(), take() their completions; or run() one.
//
// Reproducibility: the schedule depends on the order and the lengths of requests alone, never on
// time. What a sequence computes does not depend on what shares its steps, its blocks or the cache:
// every product, norm and attention treats a row by itself in a fixed order. So tokens and
// log-probabilities of a request are the same bits alone, beside others, with other sizes of cache
// and step, and after preemption, on one machine. Arithmetic is fp32 (weights fp32 or bf16, keys
// and values fp32) for all families of Decoder, on the CPU.
//
// Memory: the samples of one prompt compute it once and share its full blocks; the last, partly
// filled block is copied. When blocks run out, the sequence that was started last gives its blocks
// up and is computed again later. kv_cache_bytes is of each rank.
//
// Collectives: a decoder that is split over tp ranks has an engine on each of them, and each must
// be called alike: the same requests, steps and cancellations in the same order. In step(), on the
// decoder's tp group: for a forward two exchanges of [rows, H] a layer and one for the embedding,
// then one of [rows, V / tp] logits, each an all-gather. All ranks see the same bits and so choose
// the same tokens; the bits depend on tp, in their last places, and on nothing else.
//
// Threads: one thread may use an engine; inside step() at::get_num_threads() threads work, as many
// as it was when the engine was made.
class Engine {
 public:
  // The decoder must outlive the engine. kInvalidArgument for options, kUnavailable when the
  // decoder is not on the CPU.
  explicit Engine(const Decoder& decoder, EngineOptions options = {}, Detokenizer detokenizer = {});
  ~Engine();
  Engine(Engine&&) noexcept;

  // Checks the whole request and queues it; returns its number, from 1. kInvalidArgument naming the
  // field, or the prompt that is empty, has ids outside the vocabulary, exceeds
  // max_position_embeddings with its new tokens, or never fits the cache.
  uint64_t submit(GenerationRequest request, GenerationCallbacks callbacks = {});
  // One forward over what is due, and a token for each sequence whose last token was computed in
  // it. False, and nothing done, when idle. kCorrupt when logits are not finite; the engine is of
  // no use then.
  bool step();
  bool idle() const;
  bool finished(uint64_t id) const;  // its completions can be taken
  // Ends a request: its completions become kCancelled with the tokens they have. False when it is
  // not in flight.
  bool cancel(uint64_t id);
  // Completions of a finished request, prompt by prompt, num_generations each. kInvalidArgument
  // when there is none such.
  std::vector<Completion> take(uint64_t id);
  // submit, step until finished, take.
  std::vector<Completion> run(GenerationRequest request, GenerationCallbacks callbacks = {});

  // Call after the decoder's weights were written to or replaced: forgets cached keys and values
  // and looks at the tensors again. kUnavailable while sequences are in flight.
  void weights_changed();

  EngineStats stats() const;
  const EngineOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::models
