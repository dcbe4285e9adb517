#include "tests/parallel/stand_in/board.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace retort::test {
namespace {

// How long a short wait is. Then the caller looks whether the others have failed.
constexpr std::chrono::milliseconds kOneWait{100};
constexpr std::chrono::milliseconds kLongestPause{5};

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Board::Board(const c10::intrusive_ptr<c10d::Store>& store, std::string key, int position, int size)
    : store_(store->clone()), key_(std::move(key)), position_(position), size_(size) {}

Board Board::of_group(std::string key, int position, int size) const {
  return Board(store_, std::move(key), position, size);
}

void Board::tell(uint64_t number, const std::string& text) {
  set(key_of(std::to_string(number), position_), text);
}

std::optional<std::vector<std::string>> Board::read(uint64_t number) {
  const std::vector<std::string> keys = keys_of(std::to_string(number));
  if (!await(keys)) return std::nullopt;
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& value : store_->multiGet(keys))
    texts.push_back(text_of(value));
  return texts;
}

void Board::forget(uint64_t number) {
  store_->deleteKey(key_of(std::to_string(number), position_));
}

std::optional<std::string> Board::read_from(int position, uint64_t number) {
  return get(key_of(std::to_string(number), position));
}

void Board::tell_end(uint64_t num_started) {
  set(key_of("end", position_), std::to_string(num_started));
}

std::optional<uint64_t> Board::end_of(int position) {
  const std::optional<std::string> text = get(key_of("end", position));
  if (!text) return std::nullopt;
  return std::stoull(*text);
}

bool Board::await_ends() { return await(keys_of("end")); }

void Board::tell_failure(const std::string& text) { set(key_of("failure", position_), text); }

std::optional<std::string> Board::failure_of(int position) {
  return get(key_of("failure", position));
}

std::string Board::key_of(const std::string& what, int position) const {
  return "stand_in/" + key_ + "/" + what + "/" + std::to_string(position);
}

std::vector<std::string> Board::keys_of(const std::string& what) const {
  std::vector<std::string> keys;
  for (int position = 0; position < size_; ++position)
    keys.push_back(key_of(what, position));
  return keys;
}

void Board::set(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::optional<std::string> Board::get(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return text_of(store_->get(key));
}

// Asks again and again: c10d logs two lines for each wait that ends without the keys.
bool Board::await(const std::vector<std::string>& keys) {
  const auto late = std::chrono::steady_clock::now() + kOneWait;
  std::chrono::microseconds pause{100};
  while (!store_->check(keys)) {
    if (std::chrono::steady_clock::now() > late) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
  }
  return true;
}

}  // namespace retort::test
