// A teacher whose answers are on disk: no process, no waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/text/tokenizer.h"
#include "parallel/group.h"
#include "recipes/data/dataset.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/payload_cache.h"
#include "roles/teacher/frozen_answers.h"

namespace retort::recipes {

// Answers from a finished cache (recipes/distill/cache_manifest.h) as roles::TeacherClient does,
// with the bits of the teacher where rows share packs as they did when the cache was written.
//
// With a tensor-parallel group each rank has every row; of `full` its own columns, of the head its
// own rows.
// Collectives: none. Threads: compute.
class CachedTeacher : public roles::FrozenAnswers {
 public:
  struct Options {
    std::filesystem::path folder;
    roles::PayloadSpec spec;         // what the recipe asks for; common_vocab is filled in here
    int64_t student_vocab_rows = 0;  // of the student's head
    int64_t tp_rank = 0, tp_size = 1;
  };
  // Errors: those of read_manifest, check_cached_payload and PayloadCache; kCorrupt for a head that
  //   is not what was written (one pass over its bytes).
  CachedTeacher(Options options, const models::Tokenizer& student_tokenizer);

  const CacheManifest& manifest() const { return manifest_; }
  // Whether each row of the set whose fields have these values has its payload here, of those with
  // an index `first`, `first + stride`, ...: kMismatch naming file and line of the first that has
  // none. Nothing is read where the cache was written from the very same rows.
  void check_rows(const data::Dataset& rows, const std::map<std::string, std::string>& when,
                  int64_t first, int64_t stride) const;

  // No request leaves this process: what is asked is kept, and read when it is received.
  roles::PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                             const at::Tensor& positions) override;
  roles::Payload receive(roles::PendingPayload pending, double* waited = nullptr) override;
  const at::Tensor& head_weight() const override { return head_; }
  int64_t common_vocab() const override { return options_.spec.common_vocab; }

 private:
  void map_head();

  Options options_;
  CacheManifest manifest_;
  PayloadCache payloads_;
  std::shared_ptr<MappedFile> head_file_;  // what head_ lies in
  at::Tensor head_;
};

}  // namespace retort::recipes
