#include "launch/status/status_table.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/printable.h"
#include "base/process_name.h"
#include "launch/status/terminal_text.h"

namespace retort::launch {
namespace {

constexpr size_t kNumColumns = 9;  // the message, which follows them, is not aligned
using Row = std::array<std::string, kNumColumns + 1>;

std::string age(RunStatus::Time then, RunStatus::Time now) {
  return short_time(std::chrono::duration_cast<std::chrono::seconds>(now - then));
}

std::string ending(const RunStatus::Process& process) {
  if (process.signal) return "signal " + std::to_string(*process.signal);
  return process.exit_code ? std::to_string(*process.exit_code) : "-";
}

Row row_of(const RunStatus::Process& process, RunStatus::Time now) {
  const bool gone =
      process.state == ProcessState::kStopped || process.state == ProcessState::kFailed;
  std::string words = process.message;
  if (!process.error.empty()) words += " [" + process.error + "]";
  const std::string name = process_name(process.role, process.rank);
  if (!process.cause.empty() && process.cause != name) words += " (after " + process.cause + ")";
  return {name,
          std::string(enum_name(process.state)),
          age(process.since, now),
          std::to_string(process.step),
          gone ? "-" : age(process.last_report, now),
          std::to_string(process.restarts),
          ending(process),
          std::to_string(process.pid),
          process.host,
          printable(words)};
}

// The rows below one another, every column as wide as its widest cell.
std::vector<std::string> aligned(const std::vector<Row>& rows) {
  std::array<size_t, kNumColumns> widths{};
  for (const Row& row : rows)
    for (size_t i = 0; i < kNumColumns; ++i)
      widths[i] = std::max(widths[i], row[i].size());

  std::vector<std::string> lines;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < kNumColumns; ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line += row.back();
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string position(const RunStatus& status) {
  std::string text = progress_bar(status.fraction, 30) + " step " + std::to_string(status.step);
  if (status.max_steps) text += "/" + std::to_string(*status.max_steps);
  if (status.eta) text += "  eta " + short_time(*status.eta);
  if (status.loss) {
    std::array<char, 48> loss;
    std::snprintf(loss.data(), loss.size(), "  loss %.4f", *status.loss);
    text += loss.data();
  }
  return text;
}

std::string head(const RunStatus& status, RunStatus::Time now) {
  std::string text =
      status.run + " (" + status.recipe + "): " + std::string(enum_name(status.state));
  if (status.exit_code)
    return text + ", exit code " + std::to_string(*status.exit_code) + ", " +
           age(status.updated, now) + " ago, after " + age(status.started, status.updated);
  return text + ", started " + age(status.started, now) + " ago";
}

}  // namespace

std::vector<std::string> render_status(const RunStatus& status, RunStatus::Time now, bool lost,
                                       int columns) {
  std::vector<std::string> lines{head(status, now), position(status), ""};

  // Of a run whose launcher is lost nothing newer is known, so ages are counted up to its last
  // update.
  const RunStatus::Time seen = status.ended() || !lost ? now : status.updated;
  std::vector<Row> rows{{"PROCESS", "STATE", "FOR", "STEP", "REPORTED", "RESTARTS", "EXIT", "PID",
                         "HOST", "MESSAGE"}};
  for (const RunStatus::Process& process : status.processes)
    rows.push_back(row_of(process, seen));
  for (std::string& line : aligned(rows))
    lines.push_back(std::move(line));

  // Below the table stands what explains the state.
  if (!status.warning.empty()) lines.push_back("warning: " + status.warning);
  if (!status.notice.empty()) lines.push_back(status.notice);
  if (const auto& cause = status.cause) {
    lines.push_back(cause->process + " failed first: it " + cause->what);
    if (!cause->message.empty())
      lines.push_back("  " + cause->message +
                      (cause->error.empty() ? "" : " [" + cause->error + "]"));
    lines.push_back("  log: " + cause->log);
  }
  if (lost)
    lines.push_back("the launcher (pid " + std::to_string(status.launcher_pid) + " on " +
                    status.launcher_host + ") is gone or held: no update for " +
                    age(status.updated, now) + "; `retort launch ... --resume` goes on");

  if (columns > 0)
    for (std::string& line : lines)
      line = cut_to_columns(line, columns);
  return lines;
}

}  // namespace retort::launch
