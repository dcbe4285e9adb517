// Payloads of a teacher on disk, sequence by sequence, found by the content of the sequence.
//
//   <cache>/payloads/rank-<n>.payloads   records, appended by writing rank n
//
//   record  "RTPC", rows uint32, bytes of the body uint64, content key 16 bytes, checksum uint64
//   body    the rows of each tensor of the payload (Payload::row_tensors), then the teacher's
//           masked mass and tail bound over these rows, float64 each
//
// Numbers are little-endian. A record depends on nothing but its sequence, so that ranks of any
// layout write and read them. Where several sequences are equal the first record counts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "roles/payload/payload.h"

namespace retort::recipes {

// What a record takes beside the rows of its payload.
inline constexpr int64_t kPayloadRecordBytes = 56;

// A sequence of a request whose rows are wanted: rows [first_row, first_row + num_rows) of the
// answer.
struct WantedSequence {
  std::string key;
  int64_t first_row = 0, num_rows = 0;
};
// Those with at least one wanted row, in order. input_ids [N], cu_seqlens [S+1], positions [R]:
// integers, as in roles::ForwardRequest.
std::vector<WantedSequence> wanted_sequences(const at::Tensor& input_ids,
                                             const at::Tensor& cu_seqlens,
                                             const at::Tensor& positions);

// A file of records and how many of its bytes hold whole ones.
struct PayloadFile {
  std::string name;  // "rank-0.payloads"
  int64_t bytes = 0;
};

// Reads records. Memory: about 100 bytes a sequence; the files are mapped. Threads: one at a time.
class PayloadCache {
 public:
  // All records of these files. kCorrupt if a file is shorter, or a record does not begin where one
  // should.
  PayloadCache(const std::filesystem::path& folder, const std::vector<PayloadFile>& files);

  bool contains(const std::string& key) const { return places_.contains(key); }
  std::set<std::string> keys() const;
  int64_t num_sequences() const { return static_cast<int64_t>(places_.size()); }
  int64_t num_rows() const { return num_rows_; }  // of all distinct sequences

  // Copies the rows of a sequence to rows [first_row, first_row + num_rows) of `to` and adds its
  // masked mass and tail bound. kCorrupt, naming the file, when they are not what was written;
  // kMismatch for a sequence that is not there.
  void read(const WantedSequence& sequence, roles::Payload& to) const;

 private:
  struct Place {
    size_t file = 0;
    size_t offset = 0;  // of the record
    int64_t rows = 0;
  };
  std::vector<std::shared_ptr<MappedFile>> files_;
  std::unordered_map<std::string, Place> places_;
  int64_t num_rows_ = 0;
};

// Appends records to the file of one rank; the run's lock says that nobody else does. A process
// that is killed leaves at most one torn record. Threads: one.
class PayloadWriter {
 public:
  PayloadWriter(const std::filesystem::path& folder, int64_t rank);
  ~PayloadWriter();
  PayloadWriter(const PayloadWriter&) = delete;
  PayloadWriter& operator=(const PayloadWriter&) = delete;

  // The sequence's rows of the answer `from`. kResourceExhausted when the disk is full.
  void add(const WantedSequence& sequence, roles::Payload& from);
  // What was added is on the disk.
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// The files of a cache that is being written, in the order of their names. Those of `rank` of
// `ranks` are cut back to their last whole record first: a run that was killed may have torn one.
void cut_torn_records(const std::filesystem::path& folder, int64_t rank, int64_t ranks);
std::vector<PayloadFile> payload_files(const std::filesystem::path& folder);

}  // namespace retort::recipes
