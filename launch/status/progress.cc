#include "launch/status/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "base/printable.h"
#include "launch/status/terminal_text.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};
// In the name of a count, before the word that it is shown by.
constexpr std::string_view kCountOf = "/num_";

std::string format(const char* pattern, double value) {
  std::array<char, 48> buffer;
  std::snprintf(buffer.data(), buffer.size(), pattern, value);
  return buffer.data();
}

bool is_eval(const LoggedStep& row) {
  return std::any_of(row.values.begin(), row.values.end(),
                     [](const auto& v) { return v.first.starts_with("eval_"); });
}

// "  loss 2.3456" if the row has it.
std::string number(const LoggedStep& row, const std::string& key, const char* label,
                   const char* pattern) {
  const auto at = row.values.find(key);
  return at == row.values.end() ? ""
                                : std::string("  ") + label + " " + format(pattern, at->second);
}

std::string rate(const LoggedStep& row) {
  return number(row, "tokens_per_second", "tokens/s", "%.0f");
}

std::string loss_and_norm(const LoggedStep& row) {
  return number(row, "loss", "loss", "%.4f") + number(row, "grad_norm", "grad_norm", "%.3f");
}

// What was not measured is left out, as the entropy of a step without a token. A loss that is no
// number is what somebody must see.
bool is_shown(const std::string& key, double value) {
  return !std::isnan(value) || key.ends_with("loss");
}

std::string watched_numbers(const std::vector<std::pair<std::string, double>>& watched) {
  std::string text;
  for (const auto& [key, value] : watched) {
    // A count is of what must not be: "lost 13", and nothing of none.
    const size_t at = key.find(kCountOf);
    const bool is_count = at != std::string::npos;
    if (is_count && value > 0)
      text += "  " + key.substr(at + kCountOf.size()) + " " + format("%.0f", value);
    else if (!is_count && is_shown(key, value))
      text += "  " + key + " " + format("%.4f", value);
  }
  return text;
}

std::string learning_rate(const LoggedStep& row) {
  return number(row, "learning_rate", "lr", "%.2e");
}

std::string eval_line(const LoggedStep& row) {
  std::string text = "eval at step " + std::to_string(row.step);
  for (const auto& [key, value] : row.values)
    if (key.starts_with("eval_") && is_shown(key, value))
      text += "  " + key + " " + format(key.starts_with("eval_num_") ? "%.0f" : "%.4f", value);
  return text;
}

std::string process_line(const ProgressState::Process& process) {
  std::array<char, 96> head;
  std::snprintf(head.data(), head.size(), "  %-14s %-9s pid %-8d", process.name.c_str(),
                process.state.c_str(), static_cast<int>(process.pid));
  return std::string(head.data()) + process.message;
}

}  // namespace

std::string plain_step(const LoggedStep& row, const std::string& position,
                       const std::optional<std::chrono::seconds>& eta,
                       const std::vector<std::pair<std::string, double>>& watched) {
  if (is_eval(row)) return eval_line(row);
  return "step " + position + loss_and_norm(row) + watched_numbers(watched) + rate(row) +
         learning_rate(row) + (eta ? "  eta " + short_time(*eta) : "");
}

std::vector<std::string> render_progress(const ProgressState& state, int columns) {
  std::vector<std::string> lines{state.title};

  // A narrow terminal cuts lines off at the right, so what must be seen stands next to the bar.
  std::string head =
      progress_bar(state.fraction, std::clamp(columns / 3, 8, 40)) + " " + state.position;
  if (state.eta) head += "  eta " + short_time(*state.eta);
  if (state.last) head += rate(*state.last);
  lines.push_back(head);
  if (state.last) {
    const std::string numbers =
        loss_and_norm(*state.last) + watched_numbers(state.watched) + learning_rate(*state.last);
    if (!numbers.empty()) lines.push_back(numbers);
  }
  if (state.last_eval) lines.push_back("  " + eval_line(*state.last_eval));

  for (const auto& process : state.processes)
    lines.push_back(process_line(process));
  if (!state.warning.empty()) lines.push_back("warning: " + state.warning);
  if (!state.notice.empty()) lines.push_back(state.notice);
  for (auto& line : lines)
    line = cut_to_columns(line, columns);
  return lines;
}

Progress::Progress(Options options)
    : options_(std::move(options)),
      writer_(options_.fd, options_.max_waiting),
      tail_(options_.metrics, options_.patience) {
  state_.title = options_.title;
  state_.position = options_.max_steps ? std::to_string(options_.start_step) + "/" +
                                             std::to_string(*options_.max_steps)
                                       : std::to_string(options_.start_step);
  if (options_.max_steps)
    state_.fraction =
        static_cast<double>(options_.start_step) / static_cast<double>(*options_.max_steps);
  if (!options_.live && !options_.title.empty()) print(options_.title + "\n");
}

Progress::~Progress() { finish(); }

ProgressState::Process& Progress::process(const ProcessSpec& spec) {
  const std::string name = spec.name();
  for (auto& known : state_.processes)
    if (known.name == name) return known;
  return state_.processes.emplace_back(ProgressState::Process{.name = name});
}

void Progress::on_start(const ProcessSpec& spec, pid_t pid) {
  process(spec).pid = pid;
  if (!options_.live) print(process(spec).name + " started, pid " + std::to_string(pid) + "\n");
}

void Progress::on_status(const ProcessSpec& spec, const ProcessStatus& reported) {
  auto& shown = process(spec);
  // A message may quote what an engine said, so it is made printable first.
  ProcessStatus status = reported;
  status.message = printable(reported.message);
  // Saving comes and goes with every checkpoint, which is no news for a list of lines.
  const bool saves =
      status.state == "saving" || (shown.state == "saving" && status.state == "training");
  const bool news = shown.state != status.state && !saves;
  if (status.warning && !status.message.empty()) {
    state_.warning = shown.name + ": " + status.message;
    if (!news && !options_.live) print("warning: " + state_.warning + "\n");
  }
  shown.state = status.state;
  shown.message = status.step > 0 && status.state == "training"
                      ? "step " + std::to_string(status.step) + " " + status.message
                      : status.message;
  if (news && !options_.live)
    print(shown.name + " " + shown.state + (shown.message.empty() ? "" : ": " + shown.message) +
          "\n");
}

void Progress::on_exit(const ProcessSpec& spec, const std::string& what) {
  auto& shown = process(spec);
  const bool news = shown.state != what;
  shown.state = what == "done" ? "done" : "ended";
  if (what != "done") shown.message = what;
  if (news && !options_.live) print(shown.name + " " + what + "\n");
}

void Progress::on_phase(const std::string& message) {
  state_.notice = message;
  if (!options_.live) print(message + "\n");
}

void Progress::on_tick() {
  take_rows();
  // A drawing waits until the last one is written: a reader who is slow gets the newest state.
  const bool due = !last_draw_ || options_.now() - *last_draw_ >= kRedraw;
  if (options_.live && due && writer_.idle()) draw();
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  take_rows();
  if (options_.live)
    draw();
  else if (step_unshown_)
    print_step();
  // A print without text says how many lines were dropped, if no other line has.
  if (dropped_ > 0) print("");
  writer_.drain(Deadline::after(options_.last_wait));
  writer_.close();
}

void Progress::take_rows() {
  for (const auto& row : tail_.poll()) {
    if (is_eval(row))
      take_eval(row);
    else
      take_step(row);
  }
}

void Progress::take_eval(const LoggedStep& row) {
  state_.last_eval = row;
  if (!options_.live) print(plain_step(row, "", std::nullopt) + "\n");
}

void Progress::take_step(const LoggedStep& row) {
  state_.last = row;
  step_unshown_ = true;
  update_position(row);
  update_watched(row);
  update_eta();
  if (options_.live) return;

  // The last step of a run that is stopped early is known only to finish(), which shows it.
  const bool is_last = state_.fraction >= 1;
  const bool due = !last_plain_ || options_.now() - *last_plain_ >= options_.plain_interval;
  if (is_last || due) print_step();
}

void Progress::print_step() {
  step_unshown_ =
      !print(plain_step(*state_.last, state_.position, state_.eta, state_.watched) + "\n");
  last_plain_ = options_.now();
}

void Progress::update_position(const LoggedStep& row) {
  const auto epoch = row.values.find("epoch");
  if (options_.max_steps) {
    state_.fraction = static_cast<double>(row.step) / static_cast<double>(*options_.max_steps);
    state_.position = std::to_string(row.step) + "/" + std::to_string(*options_.max_steps);
  } else if (options_.num_epochs && epoch != row.values.end()) {
    state_.fraction = epoch->second / *options_.num_epochs;
    state_.position = std::to_string(row.step) + " (epoch " + format("%.2f", epoch->second) + "/" +
                      format("%g", *options_.num_epochs) + ")";
  }
}

// A number stays until the next row that has it, because a number of a round stands in the round's
// first row alone.
void Progress::update_watched(const LoggedStep& row) {
  std::vector<std::pair<std::string, double>> watched;
  for (const std::string& key : options_.watched) {
    const auto now = row.values.find(key);
    const auto before = std::find_if(state_.watched.begin(), state_.watched.end(),
                                     [&](const auto& one) { return one.first == key; });
    if (now != row.values.end())
      watched.emplace_back(key, now->second);
    else if (before != state_.watched.end())
      watched.push_back(*before);
  }
  state_.watched = std::move(watched);
}

// The pace is measured from the first row on, because what came before it (loading, a run that is
// resumed) says nothing about the steps.
void Progress::update_eta() {
  const auto now = options_.now();
  if (!first_) first_ = {now, state_.fraction};
  if (state_.fraction <= first_->second) return;
  const double elapsed = std::chrono::duration<double>(now - first_->first).count();
  const double left =
      elapsed * std::max(0.0, 1 - state_.fraction) / (state_.fraction - first_->second);
  state_.eta = std::chrono::seconds(static_cast<int64_t>(std::min(left, 1e9)));
}

void Progress::draw() {
  last_draw_ = options_.now();
  const int columns = options_.columns > 0 ? options_.columns : terminal_columns(options_.fd);
  // The cursor goes up to the first line of the last drawing. Each line is cleared behind its text,
  // and what is below at the end, so that nothing of the last drawing stays.
  std::string text;
  if (drawn_lines_ > 0) text += "\x1b[" + std::to_string(drawn_lines_) + "A\r";
  const auto lines = render_progress(state_, columns);
  for (const auto& line : lines)
    text += line + "\x1b[K\n";
  text += "\x1b[J";
  drawn_lines_ = lines.size();
  print(text);
}

// What finish() prints is never dropped.
bool Progress::print(const std::string& text) {
  std::string all = text;
  if (dropped_ > 0)
    all = "(" + std::to_string(dropped_) + " lines were dropped: nobody read them)\n" + text;
  if (!finished_ && !writer_.write(all)) {
    dropped_ += 1;
    return false;
  }
  if (finished_) writer_.write_always(all);
  dropped_ = 0;
  return true;
}

}  // namespace retort::launch
