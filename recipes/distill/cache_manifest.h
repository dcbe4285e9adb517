// What a cache of a teacher's payloads says of itself, and whether a recipe may train from it.
//
//   <cache>/begun.json      what is being written; there from the first record on
//   <cache>/manifest.json   the same with what there is of it, once everything has been written
//   <cache>/head.bin        hidden states: the teacher's head [vocab_rows, hidden_size], row by row
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"
#include "recipes/data/batches.h"
#include "recipes/distill/payload_cache.h"
#include "roles/payload/payload.h"
#include "roles/teacher/methods.h"

namespace retort::recipes {

struct CacheManifest {
  // The teacher, and what tells it from another.
  struct Teacher {
    std::string model;  // its folder, absolute
    std::string dtype;
    int64_t hidden_size = 0, vocab_rows = 0, tokenizer_size = 0;
    std::string weights;         // models::weights_fingerprint
    std::string files;           // roles::stamp_of_model
    uint64_t head_checksum = 0;  // of head.bin; hidden states only
    bool operator==(const Teacher&) const = default;
  } teacher;
  // The ids that writer and teacher both know.
  struct Tokenizer {
    int64_t ids = 0;
    std::string fingerprint;  // models::Tokenizer::vocabulary_fingerprint(ids)
    bool operator==(const Tokenizer&) const = default;
  } tokenizer;
  // The rows; their payloads are found by content, so that others may be there as well.
  struct Data {
    std::string fingerprint;  // data::RowSet::fingerprint
    std::string template_day;
    bool operator==(const Data&) const = default;
  } data;
  roles::PayloadSpec payload;
  // How rows shared requests: the bits of a run with the same packs are those of its own teacher.
  std::string packs;
  // What there is.
  int64_t sequences = 0, rows = 0, bytes = 0;
  std::vector<PayloadFile> files;

  at::ScalarType scalar_type() const;  // of hidden states and the head
  // Bytes of head.bin; 0 but for hidden states.
  int64_t head_bytes() const;
};

// Bytes of the records of so many sequences with so many target tokens in all:
// kPayloadRecordBytes a sequence and roles::payload_bytes_per_row a token.
int64_t payload_cache_bytes(const CacheManifest& manifest, int64_t sequences, int64_t rows);

// "dp 2, 4 rows x 1, ...": what decides which rows share a request.
std::string describe_packs(const data::BatchOptions& options);

// The finished cache in `folder`. kInvalidArgument when there is none, or one that is not complete;
// kCorrupt when the file says nothing.
CacheManifest read_manifest(const std::filesystem::path& folder);
// One that has been begun, finished or not; nullopt: none.
std::optional<CacheManifest> read_begun(const std::filesystem::path& folder);
void write_begun(const std::filesystem::path& folder, const CacheManifest& manifest);
void write_manifest(const std::filesystem::path& folder, const CacheManifest& manifest);

// What a rank that trains needs to know of its own side.
struct CacheReader {
  std::string folder;  // of the cache
  const models::Tokenizer& tokenizer;
  int64_t vocab_rows = 0;  // of the student's head
};
// The spec of what the student asks for, with the ids that both have: kMismatch, naming what, where
// the cache holds something else.
roles::PayloadSpec check_cached_payload(const CacheManifest& manifest, roles::PayloadSpec asked,
                                        const CacheReader& reader);
// Where the teacher's folder can be seen, that it is still what wrote the cache; one pass over its
// weights if a file has been touched. kMismatch.
void check_cached_teacher(const CacheManifest& manifest, const std::string& folder);

}  // namespace retort::recipes
