// Several sources as one numbered set of rows: what all datasets have in common.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/options.h"
#include "recipes/data/row_hashes.h"
#include "recipes/data/row_identity.h"

namespace retort::data {

// The fixed order of the rows (source by source) is the identity of the set. Bad rows are errors,
// or are skipped and counted (on_bad_sample). Threads: const member functions may be called from
// any thread. Copies share everything.
class RowSet {
 public:
  virtual ~RowSet() = default;
  int64_t size() const;  // rows of all sources, bad ones included
  int64_t num_sources() const;
  int64_t source_size(int64_t source) const;
  double source_weight(int64_t source) const;
  std::string origin(int64_t row) const;  // "train.jsonl:17"
  int64_t max_length() const;             // of the options
  // False for a bad row that is skipped. Reads the row only where on_bad_sample is skip; else true
  // without a look.
  virtual bool usable(int64_t row) const = 0;
  int64_t num_skipped() const;            // distinct bad rows met so far by this object
  std::string first_skip_reason() const;  // "" if none
  // The facts that are told of the rows that this object has made something of, each counted once.
  // All 0 where rows are prompts, which are never cut.
  struct ReadRows {
    int64_t num_rows = 0;
    int64_t num_truncated = 0;  // cut at max_length
    // their prompt alone has other tokens at its end: what generates begins from other tokens
    int64_t num_prompts_differ = 0;
    std::string first_that_differs;  // its origin
    int64_t longest = 0;             // tokens of the longest sequence, as it was kept
    std::string longest_origin;
  };
  ReadRows read_rows() const;
  int64_t num_read() const { return read_rows().num_rows; }
  int64_t num_truncated() const { return read_rows().num_truncated; }
  // True if the first row of one of the sources holds messages (holds_messages).
  bool has_messages() const;
  // Hash of files, columns, tokenizer, template and the options that shape the rows.
  std::string fingerprint() const;
  // The same, but kCancelled once `stop`, which is asked every few milliseconds, says so.
  std::string fingerprint(const std::function<bool()>& stop) const;
  // The same identity in its parts (row_identity.h).
  RowIdentity identity() const;
  // The hashes of a source's rows, made in `folder` unless they are there.
  RowHashes hashes(int64_t source, const std::filesystem::path& folder) const;

 protected:
  // `cache`: for the text of files that are none and offset indices, as JsonlFile. A source whose
  // path names several files is one for each of them. kInvalidArgument for a missing or empty one.
  RowSet(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
         models::ChatTemplate chat, const std::filesystem::path& cache);
  RowSet(const RowSet&) = default;
  RowSet(RowSet&&) = default;
  RowSet& operator=(const RowSet&) = default;
  RowSet& operator=(RowSet&&) = default;

  struct Line {
    std::string_view text;
    std::string origin;
    const Source& source;
    const models::Tokenizer& tokenizer;
    const models::ChatTemplate& chat;
    int64_t row = 0;
  };
  Line line(int64_t row) const;
  // `make(line)` of the row; nullopt if the row is bad (kInvalidArgument) and skipped.
  template <class Item, class Make>
  std::optional<Item> read(int64_t row, Make&& make) const {
    if (skips() && known_bad(row)) return std::nullopt;
    try {
      return make(line(row));
    } catch (const Error& error) {
      if (!skips() || error.code() != ErrorCode::kInvalidArgument) throw;
      note_bad(row, error.message());
      return std::nullopt;
    }
  }
  bool skips() const;
  struct RowFacts {
    bool truncated = false;
    bool prompt_differs = false;
    int64_t longest = 0;
  };
  void note_read(int64_t row, const RowFacts& facts) const;
  // Says what is made of the rows, and the options that shape it as a text.
  struct Shaping {
    std::string kind, options;
  };
  virtual Shaping shaping() const = 0;

 private:
  struct Impl;
  bool known_bad(int64_t row) const;
  void note_bad(int64_t row, const std::string& reason) const;
  std::shared_ptr<Impl> impl_;
};

// A RowSet each of whose rows makes one Item. Items are made on demand.
template <class Item>
class ItemSet : public RowSet {
 public:
  ItemSet(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
          models::ChatTemplate chat, const std::filesystem::path& cache)
      : RowSet(std::move(sources), options, std::move(tokenizer), std::move(chat), cache) {}

  // nullopt for a bad row when on_bad_sample is skip (counted in num_skipped()); kInvalidArgument
  // naming file and line otherwise.
  std::optional<Item> get(int64_t row) const {
    auto item = read<Item>(row, [this](const Line& line) { return make(line); });
    if constexpr (requires { item->truncated; })
      if (item)
        note_read(row, {.truncated = item->truncated,
                        .prompt_differs = item->prompt_differs,
                        .longest = item->longest()});
    return item;
  }
  bool usable(int64_t row) const final { return !skips() || get(row).has_value(); }

 private:
  // kInvalidArgument for a bad row.
  virtual Item make(const Line& line) const = 0;
};

}  // namespace retort::data
