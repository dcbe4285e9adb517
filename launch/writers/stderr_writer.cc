#include "launch/writers/stderr_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string_view>
#include <utility>

namespace retort::launch {

StderrWriter::StderrWriter(const Options& options)
    : options_(options), writer_(options.fd, options.capacity) {}

void StderrWriter::write(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (writer_.write(remark() + line))
    left_out_ = 0;
  else
    left_out_ += std::max<int64_t>(1, std::count(line.begin(), line.end(), '\n'));
}

void StderrWriter::write_always(const std::string& text) {
  const std::lock_guard lock(mutex_);
  writer_.write_always(remark() + text);
  left_out_ = 0;
}

std::string StderrWriter::remark() {
  if (left_out_ == 0) return {};
  return "(" + std::to_string(left_out_) + " lines were left out: nobody read them)\n";
}

void StderrWriter::drain() {
  buffer_.give_rest();
  write_always({});
  // The wait is without the lock, so that other threads go on saying what they have to say.
  writer_.drain(Deadline::after(options_.last_wait));
}

void StderrWriter::Buffer::take(std::string_view text) {
  const std::lock_guard lock(mutex_);
  line_ += text;
  // Only whole lines go out, so that those of other threads do not come between their parts.
  const size_t end = line_.rfind('\n');
  if (end == std::string::npos) return;
  writer_.write_always(line_.substr(0, end + 1));
  line_.erase(0, end + 1);
}

void StderrWriter::Buffer::give_rest() {
  const std::lock_guard lock(mutex_);
  if (!line_.empty()) writer_.write_always(std::exchange(line_, {}));
}

StderrWriter::Buffer::int_type StderrWriter::Buffer::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char one = traits_type::to_char_type(c);
  take({&one, 1});
  return c;
}

std::streamsize StderrWriter::Buffer::xsputn(const char* text, std::streamsize size) {
  take({text, static_cast<size_t>(size)});
  return size;
}

void write_stderr_in_background() {
  static const bool is_set = [] {
    if (::fcntl(STDERR_FILENO, F_GETFD) < 0) return false;  // closed: there is no reader
    // Never destroyed: a line may come late.
    StderrWriter& writer = *new StderrWriter(StderrWriter::Options{});
    set_log_sink(&writer);
    std::cerr.rdbuf(&writer.stream_buffer());
    return true;
  }();
  static_cast<void>(is_set);
}

}  // namespace retort::launch
