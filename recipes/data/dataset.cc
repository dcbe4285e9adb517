#include "recipes/data/dataset.h"

#include <limits>
#include <utility>

#include "base/log.h"
#include "recipes/data/detail/creation_lock.h"
#include "recipes/data/detail/token_file.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/data/prompt_dataset.h"

namespace retort::data {
namespace {

// Marks in fingerprints that prompt and completion are tokenised as one text. Earlier versions did
// not, so their cursors and caches are of other tokens.
constexpr const char* kBoundary = " boundary=joined";

bool wraps(const DataOptions& options) {
  return options.packing_strategy == PackingStrategy::kWrapped;
}

SampleOptions sample_options(const DataOptions& options) {
  return {wraps(options) ? std::numeric_limits<int64_t>::max() : options.max_length,
          options.completion_only_loss, options.assistant_only_loss, options.truncation_mode};
}

// Only the mode that cuts otherwise than before is named, so that fingerprints of the default stay
// as they were.
std::string truncation_text(TruncationMode mode) {
  return mode == TruncationMode::kKeepEnd ? " truncation_mode=keep_end" : "";
}

}  // namespace

Dataset::Dataset(std::vector<Source> sources, const DataOptions& options,
                 models::Tokenizer tokenizer, models::ChatTemplate chat,
                 const std::filesystem::path& cache, SampleRule rule)
    : ItemSet(std::move(sources), options, std::move(tokenizer), std::move(chat), cache),
      wraps_(data::wraps(options)),
      options_(sample_options(options)),
      rule_(std::move(rule)) {
  if (options.tokenized_cache && !cache.empty()) open_tokens(*options.tokenized_cache);
}

// The file is named after all that shapes its samples, so one of other settings is never taken for
// it. The number counts what this program has changed in the reading of rows (2: loss switches of
// messages; 3: prompt and completion as one text).
void Dataset::open_tokens(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (fingerprint().substr(0, 32) + "-3.tokens");
  if (!std::filesystem::exists(path)) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed)
      throw Error(ErrorCode::kUnavailable, "data.tokenized_cache: cannot create folder " +
                                               folder.string() + ": " + failed.message());
    const detail::CreationLock lock(folder);
    // Another process may have made the file while this one waited for the lock.
    if (!std::filesystem::exists(path)) {
      RETORT_LOG(kInfo) << "tokenising " << size() << " rows into " << path.string();
      detail::write_token_file(path, size(), [this](int64_t row) {
        try {
          return detail::MadeRow{.sample = tokenized(line(row)), .bad = ""};
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kInvalidArgument) throw;
          return detail::MadeRow{.sample = {}, .bad = error.message()};
        }
      });
    }
  }
  tokens_ = std::make_shared<const detail::TokenFile>(path, size());
}

Sample Dataset::make(const Line& line) const {
  Sample sample = tokens_ ? tokens_->sample(line.row, line.origin) : tokenized(line);
  if (rule_.reader) sample.reading = read_by_other(line);
  if (rule_.require) rule_.require(sample);
  return sample;
}

Sample Dataset::tokenized(const Line& line) const {
  return make_sample(line.text, line.origin, line.source, line.tokenizer, line.chat, options_);
}

// The row is read whole: where the student's is cut, what is said after the cut is compared with
// nothing.
Reading Dataset::read_by_other(const Line& line) const {
  const RowReader& reader = *rule_.reader;
  if (detect_format(line.text, line.origin, line.source) == Format::kInputIds)
    throw Error(ErrorCode::kInvalidArgument,
                line.origin +
                    ": input_ids are the student's, and a teacher with another tokenizer needs the "
                    "text; give rows of text or messages");
  SampleOptions whole = options_;
  whole.max_length = std::numeric_limits<int64_t>::max();
  whole.compare_prompts = false;
  Sample read =
      make_sample(line.text, line.origin, line.source, reader.tokenizer, reader.chat, whole);
  if (reader.max_length > 0 && read.longest() > reader.max_length)
    throw Error(ErrorCode::kInvalidArgument, line.origin + ": " + std::to_string(read.longest()) +
                                                 " tokens for the teacher, its context is " +
                                                 std::to_string(reader.max_length) +
                                                 "; shorten the row, or leave it out");
  return {.input_ids = std::move(read.input_ids), .is_target = std::move(read.is_target)};
}

RowSet::Shaping Dataset::shaping() const {
  return {.kind = "dataset",
          .options = "max_length=" + std::to_string(max_length()) +
                     " completion_only_loss=" + std::to_string(options_.completion_only_loss) +
                     " assistant_only_loss=" + std::to_string(options_.assistant_only_loss) +
                     kBoundary + (wraps_ ? " packing_strategy=wrapped" : "") +
                     truncation_text(options_.truncation_mode) + rule_.shaping};
}

PreferenceSample PreferenceDataset::make(const Line& line) const {
  return make_preference(line.text, line.origin, line.source, line.tokenizer, line.chat,
                         max_length(), truncation_);
}

RowSet::Shaping PreferenceDataset::shaping() const {
  return {.kind = "preferences",
          .options = "max_length=" + std::to_string(max_length()) + kBoundary +
                     truncation_text(truncation_)};
}

PromptDataset::PromptDataset(std::vector<Source> sources, const DataOptions& options,
                             models::Tokenizer tokenizer, models::ChatTemplate chat,
                             const std::filesystem::path& cache, int64_t completion_tokens,
                             bool for_episodes)
    : ItemSet(std::move(sources), options, std::move(tokenizer), std::move(chat), cache),
      completion_tokens_(completion_tokens),
      for_episodes_(for_episodes) {
  RETORT_CHECK(completion_tokens > 0) << "a completion of " << completion_tokens << " tokens";
}

PromptSample PromptDataset::make(const Line& line) const {
  PromptSample sample =
      make_prompt(line.text, line.origin, line.source, line.tokenizer, line.chat, for_episodes_);
  const auto length = static_cast<int64_t>(sample.prompt_ids.size());
  if (length + completion_tokens_ > max_length())
    throw Error(ErrorCode::kInvalidArgument,
                line.origin + ": the prompt has " + std::to_string(length) +
                    " tokens, which leaves no room for a completion of " +
                    std::to_string(completion_tokens_) + " within data.max_length " +
                    std::to_string(max_length()) +
                    "; raise it, allow shorter completions, or leave the row out");
  return sample;
}

RowSet::Shaping PromptDataset::shaping() const {
  // Prompts are only refused by their length, so that limit is all that shapes the set: a shorter
  // max_length with shorter completions is the same data.
  const int64_t too_long = max_length() - completion_tokens_ + 1;
  return {.kind = "prompts",
          .options =
              "max_length=" + std::to_string(too_long) + (for_episodes_ ? " conversations" : "")};
}

}  // namespace retort::data
