#include "recipes/data/bad_rows.h"

#include "base/log.h"

namespace retort::data {
namespace {

// "a.jsonl:3, 7, b.jsonl:1": a file is named once for the lines that follow each other.
std::string list_lines(const std::vector<std::string>& origins) {
  std::string text, file;
  for (const std::string& origin : origins) {
    const size_t colon = origin.rfind(':');
    const std::string of = origin.substr(0, colon);
    if (!text.empty()) text += ", ";
    text += of == file && colon != std::string::npos ? origin.substr(colon + 1) : origin;
    file = of;
  }
  return text;
}

}  // namespace

void BadRows::add(std::string origin, std::string message) {
  ++count_;
  if (origins_.size() == kMostShown) return;
  origins_.push_back(std::move(origin));
  messages_.push_back(std::move(message));
}

std::string BadRows::text(int64_t num_rows) const {
  RETORT_CHECK(count_ > 0) << "no bad row to speak of";
  if (count_ == 1) return messages_.front();
  const int64_t more = count_ - static_cast<int64_t>(origins_.size());
  return std::to_string(count_) + " of " + std::to_string(num_rows) +
         " rows are bad; the first: " + messages_.front() + "; all: " + list_lines(origins_) +
         (more > 0 ? " and " + std::to_string(more) + " more" : "") +
         ". data.on_bad_sample: skip leaves them out";
}

void BadRows::refuse(int64_t num_rows) const {
  if (count_ == 0) return;
  if (count_ > 1) {
    for (const std::string& message : messages_)
      RETORT_LOG(kError) << message;
  }
  throw Error(ErrorCode::kInvalidArgument, text(num_rows));
}

}  // namespace retort::data
