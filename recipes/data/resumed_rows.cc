#include "recipes/data/resumed_rows.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/order.h"

namespace retort::data {
namespace {

// A file whose content differs from that of the first run.
struct ChangedFile {
  int64_t first_row = 0;  // in the numbers of the set
  int64_t rows = 0;
  RowHashes before, now;

  bool holds(int64_t row) const { return row >= first_row && row < first_row + rows; }
  bool differs(int64_t row) const { return before.at(row - first_row) != now.at(row - first_row); }
};

[[noreturn]] void refuse_rows(const std::string& what, const ResumedAt& at) {
  throw Error(ErrorCode::kInvalidArgument,
              what + " since " + at.checkpoint + "; restore it, or start a new run");
}

void compare_options(const RowIdentity& before, const RowIdentity& now, const ResumedAt& at,
                     std::vector<std::string>& told) {
  if (before.shape != now.shape)
    refuse_rows(
        "what shapes the training rows (their format or columns, the tokenizer, the chat "
        "template's settings, an option such as data.max_length, or how this version of retort "
        "cuts rows) changed",
        at);
  if (before.files.size() != now.files.size())
    throw Error(ErrorCode::kInvalidArgument,
                "data.train names " + std::to_string(now.files.size()) + " files, and named " +
                    std::to_string(before.files.size()) + " for " + at.checkpoint +
                    "; restore it, or start a new run");

  // With `error` every row that was used was good, so going on with `skip` changes none of them.
  // The other way rows that were left out would now be errors.
  if (before.on_bad_sample == now.on_bad_sample) return;
  if (now.on_bad_sample == OnBadSample::kError)
    refuse_rows(
        "data.on_bad_sample: rows that were left out until now would be errors; it changed from "
        "skip to error",
        at);
  told.push_back("data.on_bad_sample is skip from here on: all rows that were used until " +
                 at.checkpoint + " were good");
}

std::vector<ChangedFile> changed_files(const RowIdentity& before, const RowIdentity& now,
                                       const RowSet& rows, const ResumedAt& at) {
  std::vector<ChangedFile> changed;
  int64_t first_row = 0;
  for (size_t i = 0; i < now.files.size(); ++i) {
    const RowIdentity::File& file = now.files[i];
    const RowIdentity::File& was = before.files[i];
    const int64_t begin = std::exchange(first_row, first_row + file.rows);
    if (file.fingerprint == was.fingerprint) continue;
    // The order of an epoch is a permutation of the number of rows: with another number the cursor
    // would point at other rows.
    if (file.rows != was.rows)
      refuse_rows(file.path + ": has " + std::to_string(file.rows) + " rows, and had " +
                      std::to_string(was.rows) +
                      ": rows may be mended, but the order of training follows from their number, "
                      "which changed",
                  at);
    auto old = RowHashes::find(at.hashes, was.fingerprint);
    if (!old || old->size() != was.rows)
      refuse_rows(file.path +
                      ": which of its rows differ cannot be told, as the hashes of the rows before "
                      "are not in " +
                      at.hashes.string() + ", and the file changed",
                  at);
    changed.push_back({.first_row = begin,
                       .rows = file.rows,
                       .before = std::move(*old),
                       .now = rows.hashes(static_cast<int64_t>(i), at.hashes)});
  }
  return changed;
}

// Returns the first row that was used and differs, or -1. After the first epoch, or where nobody
// knows how far it went, every row counts as used. Within it the order of the epoch, which is the
// same as before, says which were.
int64_t first_used(const std::vector<ChangedFile>& changed, const RowSet& rows,
                   const ResumedAt& at) {
  const auto differs = [&](int64_t row) {
    return std::ranges::any_of(
        changed, [&](const ChangedFile& file) { return file.holds(row) && file.differs(row); });
  };
  if (at.epoch > 0 || !at.used_places) {
    for (int64_t row = 0; row < rows.size(); ++row)
      if (differs(row)) return row;
    return -1;
  }

  const detail::EpochOrder order(detail::source_shapes(rows), at.seed, /*epoch=*/0, at.shuffle);
  int64_t first = -1;
  for (int64_t place = 0; place < std::min(*at.used_places, order.size()); ++place) {
    const int64_t row = order.row(place);
    if ((first < 0 || row < first) && differs(row)) first = row;
  }
  return first;
}

}  // namespace

std::vector<std::string> compare_rows(const RowIdentity& before, const RowSet& now,
                                      const ResumedAt& at) {
  std::vector<std::string> told;
  const RowIdentity identity = now.identity();
  compare_options(before, identity, at, told);

  const std::vector<ChangedFile> changed = changed_files(before, identity, now, at);
  if (const int64_t row = first_used(changed, now, at); row >= 0)
    refuse_rows(now.origin(row) + ": the run has used this row, and it changed", at);
  // Changes to rows that nobody has used yet do no harm, but they are told.
  for (const ChangedFile& file : changed) {
    int64_t differing = 0;
    for (int64_t row = file.first_row; row < file.first_row + file.rows; ++row)
      differing += file.differs(row) ? 1 : 0;
    const std::string origin = now.origin(file.first_row);
    told.push_back(origin.substr(0, origin.rfind(':')) + ": " + std::to_string(differing) +
                   " of its " + std::to_string(file.rows) + " rows changed since " + at.checkpoint +
                   ", none of which was used until then");
  }
  return told;
}

}  // namespace retort::data
