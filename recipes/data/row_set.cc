#include "recipes/data/row_set.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"
#include "recipes/data/source_files.h"

namespace retort::data {
namespace {

constexpr size_t kWarnings = 5;  // bad rows shown one by one; then only at powers of two

std::string shape_text(const Source& source) {
  std::string text = "format=" + std::string(enum_name(source.format));
  if (source.remove_none_values) text += " remove_none_values";
  for (const auto& [key, column] : source.columns) {
    text += "\n" + std::to_string(key.size()) + ":" + key;
    text += "=" + std::to_string(column.size()) + ":" + column;
  }
  return text;
}

}  // namespace

struct RowSet::Impl {
  Impl(std::vector<Source> given, models::Tokenizer t, models::ChatTemplate c)
      : sources(std::move(given)), tokenizer(std::move(t)), chat(std::move(c)) {}

  // Returns the index of the row's source, and the row inside it.
  std::pair<size_t, int64_t> locate(int64_t row) const {
    RETORT_CHECK(row >= 0 && row < ends.back()) << "row " << row << " of " << ends.back();
    const auto source =
        static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), row) - ends.begin());
    return {source, row - (source == 0 ? 0 : ends[source - 1])};
  }

  // The fingerprint of all that turns text into ids.
  std::string text_fingerprint() const {
    return tokenizer.vocabulary_fingerprint() + "\n" + tokenizer.processing_fingerprint() + "\n" +
           chat.fingerprint() + "\n";
  }

  std::vector<Source> sources;
  models::Tokenizer tokenizer;
  models::ChatTemplate chat;
  OnBadSample on_bad_sample = OnBadSample::kError;
  int64_t max_length = 0;
  std::vector<JsonlFile> files;
  std::vector<int64_t> ends;  // rows of all sources up to and with this one

  mutable std::mutex mutex;  // guards what is below
  std::unordered_set<int64_t> bad;
  std::string first_reason;
  std::vector<bool> read;  // a bit for each row, or none
  ReadRows read_rows;
};

RowSet::RowSet(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
               models::ChatTemplate chat, const std::filesystem::path& cache)
    : impl_(std::make_shared<Impl>(std::move(sources), std::move(tokenizer), std::move(chat))) {
  if (impl_->sources.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "no data source was given; expected at least one {path: FILE.jsonl}");
  // This set's sources are checked, whichever of the options' lists they come from.
  DataOptions checked = options;
  checked.train = impl_->sources;
  checked.eval.clear();
  checked.validate();
  impl_->sources = expand_sources(impl_->sources);
  impl_->on_bad_sample = options.on_bad_sample;
  impl_->max_length = options.max_length;

  int64_t rows = 0;
  for (const Source& source : impl_->sources) {
    impl_->files.emplace_back(source.path, cache);
    if (impl_->files.back().size() == 0)
      throw Error(ErrorCode::kInvalidArgument,
                  source.path +
                      ": holds no rows; expected at least one, which is a JSON object on "
                      "a line in JSONL");
    rows += impl_->files.back().size();
    impl_->ends.push_back(rows);
  }
}

int64_t RowSet::size() const { return impl_->ends.back(); }
int64_t RowSet::num_sources() const { return static_cast<int64_t>(impl_->sources.size()); }
int64_t RowSet::source_size(int64_t source) const {
  return impl_->files.at(static_cast<size_t>(source)).size();
}
double RowSet::source_weight(int64_t source) const {
  return impl_->sources.at(static_cast<size_t>(source)).weight;
}

std::string RowSet::origin(int64_t row) const {
  const auto [source, line] = impl_->locate(row);
  return impl_->sources[source].path + ":" + std::to_string(impl_->files[source].line_number(line));
}

int64_t RowSet::max_length() const { return impl_->max_length; }

RowSet::Line RowSet::line(int64_t row) const {
  const auto [source, line] = impl_->locate(row);
  return {impl_->files[source].line(line),
          origin(row),
          impl_->sources[source],
          impl_->tokenizer,
          impl_->chat,
          row};
}

bool RowSet::skips() const { return impl_->on_bad_sample == OnBadSample::kSkip; }

bool RowSet::known_bad(int64_t row) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bad.contains(row);
}

void RowSet::note_bad(int64_t row, const std::string& reason) const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->bad.insert(row).second) return;
  if (impl_->bad.size() == 1) impl_->first_reason = reason;
  const size_t count = impl_->bad.size();
  if (count <= kWarnings) {
    RETORT_LOG(kWarning) << "skipped a bad sample: " << reason;
  } else if ((count & (count - 1)) == 0) {
    RETORT_LOG(kWarning) << count << " bad samples skipped so far; the latest: " << reason;
  }
}

int64_t RowSet::num_skipped() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int64_t>(impl_->bad.size());
}

std::string RowSet::first_skip_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->first_reason;
}

void RowSet::note_read(int64_t row, const RowFacts& facts) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->read.resize(static_cast<size_t>(size()));
  if (impl_->read[static_cast<size_t>(row)]) return;
  impl_->read[static_cast<size_t>(row)] = true;

  ReadRows& rows = impl_->read_rows;
  ++rows.num_rows;
  rows.num_truncated += facts.truncated ? 1 : 0;
  if (facts.prompt_differs && ++rows.num_prompts_differ == 1) rows.first_that_differs = origin(row);
  if (facts.longest <= rows.longest) return;
  rows.longest = facts.longest;
  rows.longest_origin = origin(row);
}

RowSet::ReadRows RowSet::read_rows() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->read_rows;
}

bool RowSet::has_messages() const {
  for (size_t i = 0; i < impl_->files.size(); ++i)
    try {
      if (holds_messages(impl_->files[i].line(0), impl_->sources[i])) return true;
    } catch (const Error& error) {
      // A bad first row answers nothing here; whoever comes to it says what it lacks.
      if (error.code() != ErrorCode::kInvalidArgument) throw;
    }
  return false;
}

std::string RowSet::fingerprint() const {
  return fingerprint([] { return false; });
}

std::string RowSet::fingerprint(const std::function<bool()>& stop) const {
  const Shaping shaped = shaping();
  Sha256 hash;
  hash.update("retort " + shaped.kind + " 1\n");
  for (size_t i = 0; i < impl_->files.size(); ++i)
    hash.update(impl_->files[i].fingerprint(stop) + "\n" + shape_text(impl_->sources[i]) + "\n");
  hash.update(impl_->text_fingerprint());
  hash.update(shaped.options + " on_bad_sample=" + std::string(enum_name(impl_->on_bad_sample)));
  return hash.hex_digest();
}

RowIdentity RowSet::identity() const {
  const Shaping shaped = shaping();
  RowIdentity identity{.shape = "", .on_bad_sample = impl_->on_bad_sample, .files = {}};
  Sha256 hash;
  hash.update("retort shape of " + shaped.kind + " 1\n");
  for (size_t i = 0; i < impl_->files.size(); ++i) {
    const JsonlFile& file = impl_->files[i];
    hash.update(shape_text(impl_->sources[i]) + "\n");
    identity.files.push_back(
        {.path = impl_->sources[i].path, .fingerprint = file.fingerprint(), .rows = file.size()});
  }
  hash.update(impl_->text_fingerprint() + shaped.options);
  identity.shape = hash.hex_digest();
  return identity;
}

RowHashes RowSet::hashes(int64_t source, const std::filesystem::path& folder) const {
  return RowHashes::keep(impl_->files.at(static_cast<size_t>(source)), folder);
}

}  // namespace retort::data
