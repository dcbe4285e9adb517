#include "launch/status/run_status.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace retort::launch {
namespace {

using Json = nlohmann::ordered_json;
using Time = RunStatus::Time;

constexpr std::chrono::seconds kSilent{15};
// A process that is not seen may live in another namespace of the same host's name.
constexpr std::chrono::seconds kSilentAndUnseen{3};

// Milliseconds are enough, and are short to read.
double unix_seconds(Time time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  return static_cast<double>(ms.count()) / 1e3;
}

Time time_of(const Json& json) {
  const auto ms = static_cast<int64_t>(std::llround(json.get<double>() * 1e3));
  return Time(std::chrono::duration_cast<Time::duration>(std::chrono::milliseconds(ms)));
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
std::optional<T> optional_of(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<T>());
}

Json to_json(const RunStatus::Process& process) {
  return {{"role", process.role},
          {"rank", process.rank},
          {"pid", process.pid},
          {"host", process.host},
          {"state", enum_name(process.state)},
          {"since", unix_seconds(process.since)},
          {"step", process.step},
          {"message", process.message},
          {"last_report", unix_seconds(process.last_report)},
          {"restarts", process.restarts},
          {"exit_code", or_null(process.exit_code)},
          {"signal", or_null(process.signal)},
          {"error", process.error},
          {"cause", process.cause}};
}

// Versions before called both "running".
ProcessState process_state(const std::string& state, const std::string& role) {
  if (state != "running") return parse_enum<ProcessState>(state);
  return role == "student" ? ProcessState::kTraining : ProcessState::kServing;
}

RunStatus::Process process_of(const Json& json) {
  return {.role = json.at("role"),
          .rank = json.at("rank"),
          .pid = json.at("pid"),
          .host = json.at("host"),
          .state = process_state(json.at("state").get<std::string>(), json.at("role")),
          .since = time_of(json.at("since")),
          .step = json.at("step"),
          .message = json.at("message"),
          .last_report = time_of(json.at("last_report")),
          .restarts = json.at("restarts"),
          .exit_code = optional_of<int>(json.at("exit_code")),
          .signal = optional_of<int>(json.at("signal")),
          .error = json.at("error"),
          .cause = json.at("cause")};
}

Json to_json(const RunStatus::Cause& cause) {
  return {{"process", cause.process},
          {"what", cause.what},
          {"message", cause.message},
          {"error", cause.error},
          {"log", cause.log}};
}

RunStatus::Cause cause_of(const Json& json) {
  return {.process = json.at("process"),
          .what = json.at("what"),
          .message = json.at("message"),
          .error = json.at("error"),
          .log = json.at("log")};
}

RunStatus status_of(const Json& json) {
  RunStatus status{.run = json.at("run"),
                   .recipe = json.at("recipe"),
                   .reproducible = json.at("reproducible"),
                   .state = parse_enum<RunState>(json.at("state").get<std::string>()),
                   .launcher_pid = json.at("launcher").at("pid"),
                   .launcher_host = json.at("launcher").at("host"),
                   .started = time_of(json.at("started")),
                   .updated = time_of(json.at("updated")),
                   .step = json.at("step"),
                   .max_steps = optional_of<int64_t>(json.at("max_steps")),
                   .fraction = json.at("fraction"),
                   .loss = optional_of<double>(json.at("loss")),
                   .warning = json.value("warning", ""),
                   .notice = json.at("notice"),
                   .exit_code = optional_of<int>(json.at("exit_code"))};
  if (const auto eta = optional_of<int64_t>(json.at("eta_seconds")))
    status.eta = std::chrono::seconds(*eta);

  if (const Json& cause = json.at("cause"); !cause.is_null()) status.cause = cause_of(cause);
  for (const Json& process : json.at("processes"))
    status.processes.push_back(process_of(process));
  return status;
}

}  // namespace

std::string encode_run_status(const RunStatus& status) {
  Json json{{"run", status.run},
            {"recipe", status.recipe},
            {"reproducible", status.reproducible},
            {"state", enum_name(status.state)},
            {"launcher", {{"pid", status.launcher_pid}, {"host", status.launcher_host}}},
            {"started", unix_seconds(status.started)},
            {"updated", unix_seconds(status.updated)},
            {"step", status.step},
            {"max_steps", or_null(status.max_steps)},
            {"fraction", status.fraction},
            {"eta_seconds", status.eta ? Json(status.eta->count()) : Json(nullptr)},
            {"loss", or_null(status.loss)},
            {"warning", status.warning},
            {"notice", status.notice},
            {"exit_code", or_null(status.exit_code)},
            {"cause", status.cause ? to_json(*status.cause) : Json(nullptr)},
            {"processes", Json::array()}};
  for (const RunStatus::Process& process : status.processes)
    json["processes"].push_back(to_json(process));

  return json.dump(/*indent=*/1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::ignore) + "\n";
}

RunStatus decode_run_status(std::string_view text) {
  try {
    return status_of(Json::parse(text));
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kCorrupt, std::string("not the status of a run: ") + e.what());
  } catch (const Error& e) {
    throw Error(ErrorCode::kCorrupt, "not the status of a run: " + e.message());
  }
}

bool launcher_is_lost(const RunStatus& status, RunStatus::Time now, bool launcher_runs) {
  if (status.ended()) return false;
  const auto silence = now - status.updated;
  return silence > kSilent || (!launcher_runs && silence > kSilentAndUnseen);
}

}  // namespace retort::launch
