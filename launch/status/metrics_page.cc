#include "launch/status/metrics_page.h"

#include <cctype>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/options.h"

namespace retort::launch {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return json_number(value);
}

std::string metric_name(const std::string& name) {
  std::string clean = name;
  for (char& c : clean)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return clean;
}

class Page {
 public:
  explicit Page(std::string run) : run_(std::move(run)) {}

  // The text format wants all samples of one name to follow each other, which is left to the
  // caller.
  void add(const std::string& name, double value, const Labels& labels = {}) {
    if (typed_.insert(name).second) text_ += "# TYPE retort_" + name + " gauge\n";
    text_ += "retort_" + name + "{run=" + json_quote(run_);
    for (const auto& [key, label] : labels)
      text_ += "," + key + "=" + json_quote(label);
    text_ += "} " + number_text(value) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string run_;
  std::set<std::string> typed_;
  std::string text_;
};

Labels of_process(const RunStatus::Process& process) {
  return {{"role", process.role}, {"rank", std::to_string(process.rank)}, {"host", process.host}};
}

// One sample for each state, 1 for the one that it is in.
template <class State>
void add_states(Page& page, const std::string& name, State now, const Labels& labels = {}) {
  for (const auto& [text, state] : EnumNames<State>::values) {
    Labels with = labels;
    with.emplace_back("state", std::string(text));
    page.add(name, state == now ? 1 : 0, with);
  }
}

// Each name has a loop of its own, because its samples must follow each other.
void add_processes(Page& page, const RunStatus& status, RunStatus::Time now) {
  for (const RunStatus::Process& process : status.processes)
    add_states(page, "process_state", process.state, of_process(process));
  for (const RunStatus::Process& process : status.processes)
    page.add("process_step", static_cast<double>(process.step), of_process(process));
  for (const RunStatus::Process& process : status.processes)
    page.add("process_restarts", static_cast<double>(process.restarts), of_process(process));
  for (const RunStatus::Process& process : status.processes) {
    const std::chrono::duration<double> age = now - process.last_report;
    page.add("process_report_age_seconds", age.count(), of_process(process));
  }
}

void add_logged(Page& page, const LoggedStep& row) {
  for (const auto& [name, value] : row.values)
    page.add("logged_" + metric_name(name), value);
}

}  // namespace

std::string metrics_page(const RunStatus& status, RunStatus::Time now,
                         const std::optional<LoggedStep>& last,
                         const std::optional<LoggedStep>& last_eval) {
  Page page(status.run);
  add_states(page, "run_state", status.state);
  page.add("step", static_cast<double>(status.step));
  if (status.max_steps) page.add("max_steps", static_cast<double>(*status.max_steps));
  page.add("fraction", status.fraction);
  if (status.eta) page.add("eta_seconds", static_cast<double>(status.eta->count()));
  add_processes(page, status, now);

  // An evaluation's names have a prefix of their own but for the step's, which it may share.
  std::map<std::string, double> logged;
  if (last_eval) logged = last_eval->values;
  if (last)
    for (const auto& [name, value] : last->values)
      logged[name] = value;
  add_logged(page, {.step = 0, .values = std::move(logged)});
  return page.take();
}

}  // namespace retort::launch
