#include "recipes/run/checkpoints/loop_state.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

// This is the format of state/loop.json. Format 1 had the cursor's numbers beside the others, under
// older names.
constexpr int kFormat = 2;

nlohmann::ordered_json write_cursor(const data::Cursor& cursor) {
  return {{"epoch", cursor.epoch},
          {"consumed", cursor.consumed},
          {"total", cursor.total},
          {"window", cursor.window},
          {"consumed_before_window", cursor.consumed_before_window}};
}

data::Cursor read_cursor(const nlohmann::json& state, int format) {
  if (format == 1)
    return {.epoch = state.at("epoch"),
            .consumed = state.at("packs_consumed"),
            .total = state.at("total_steps")};
  const nlohmann::json& cursor = state.at("cursor");
  return {.epoch = cursor.at("epoch"),
          .consumed = cursor.at("consumed"),
          .total = cursor.at("total"),
          .window = cursor.value("window", int64_t{0}),
          .consumed_before_window = cursor.value("consumed_before_window", int64_t{0})};
}

nlohmann::ordered_json write_rows(const data::RowIdentity& rows) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const data::RowIdentity::File& file : rows.files)
    files.push_back({{"fingerprint", file.fingerprint}, {"rows", file.rows}});
  return {{"shape", rows.shape},
          {"on_bad_sample", std::string(enum_name(rows.on_bad_sample))},
          {"files", std::move(files)}};
}

data::RowIdentity read_rows(const nlohmann::json& rows) {
  data::RowIdentity identity{
      .shape = rows.at("shape"),
      .on_bad_sample = parse_enum<data::OnBadSample>(rows.at("on_bad_sample").get<std::string>()),
      .files = {}};
  for (const nlohmann::json& file : rows.at("files"))
    identity.files.push_back(
        {.path = "", .fingerprint = file.at("fingerprint"), .rows = file.at("rows")});
  return identity;
}

// The value is kept to the last bit: the text of a number is the shortest that gives it again.
nlohmann::ordered_json write_best(const BestModel& best) {
  return {{"metric", best.metric},
          {"step", best.step},
          {"value", best.value},
          {"greater_is_better", best.greater_is_better},
          {"evaluations_since", best.evaluations_since}};
}

BestModel read_best(const nlohmann::json& best) {
  return {.metric = best.at("metric"),
          .step = best.at("step"),
          .value = best.at("value"),
          .greater_is_better = best.at("greater_is_better"),
          .evaluations_since = best.at("evaluations_since")};
}

}  // namespace

std::string write_loop_state(const LoopState& state) {
  const parallel::Layout& layout = state.layout;
  nlohmann::ordered_json json = {{"format", kFormat},
                                 {"step", state.step},
                                 {"cursor", write_cursor(state.cursor)},
                                 {"num_tokens", state.num_tokens},
                                 {"skipped_steps", state.skipped_steps},
                                 {"skipped_in_a_row", state.skipped_in_a_row},
                                 {"seed", state.seed},
                                 {"dp", layout.dp},
                                 {"tp", layout.tp},
                                 {"pp", layout.pp},
                                 {"sequence_parallel", layout.sequence_parallel},
                                 {"virtual_pp", layout.virtual_pp},
                                 {"distributed_optimizer", layout.distributed_optimizer},
                                 {"device", std::string(enum_name(layout.device))},
                                 {"threads", layout.threads},
                                 {"data_fingerprint", state.data_fingerprint},
                                 {"template_day", state.template_day}};
  if (state.rows) json["rows"] = write_rows(*state.rows);
  if (state.first_adapter) json["first_adapter"] = *state.first_adapter;
  if (!state.best.metric.empty()) json["best"] = write_best(state.best);
  return json.dump(2) + "\n";
}

LoopState read_loop_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state" / "loop.json";
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    const int format = json.at("format");
    if (format < 1 || format > kFormat)
      throw Error(ErrorCode::kMismatch, file.string() + " has format " + std::to_string(format) +
                                            "; this version reads 1 to " + std::to_string(kFormat) +
                                            ": resume with the version that wrote it");
    LoopState state;
    state.step = json.at("step");
    state.cursor = read_cursor(json, format);
    state.num_tokens = json.at("num_tokens");
    state.seed = json.at("seed");
    state.layout.dp = json.at("dp");
    state.layout.threads = json.at("threads");

    // Older files lack the rest: they were written before there were such steps and layouts.
    state.skipped_steps = json.value("skipped_steps", int64_t{0});
    state.skipped_in_a_row = json.value("skipped_in_a_row", int64_t{0});
    state.layout.tp = json.value("tp", state.layout.tp);
    state.layout.pp = json.value("pp", state.layout.pp);
    state.layout.sequence_parallel = json.value("sequence_parallel", false);
    state.layout.virtual_pp = json.value("virtual_pp", state.layout.virtual_pp);
    state.layout.distributed_optimizer = json.value("distributed_optimizer", false);
    if (json.value("device", "cpu") == "cuda") state.layout.device = parallel::Device::kCuda;

    state.data_fingerprint = json.at("data_fingerprint");
    state.template_day = json.value("template_day", "");
    if (json.contains("rows")) state.rows = read_rows(json.at("rows"));
    if (json.contains("first_adapter"))
      state.first_adapter = json.at("first_adapter").get<std::string>();
    if (json.contains("best")) state.best = read_best(json.at("best"));
    return state;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kCorrupt, file.string() + " cannot be read: " + e.what());
  }
}

std::string layout_text(const parallel::Layout& layout) {
  std::string text = "tp " + std::to_string(layout.tp) +
                     (layout.sequence_parallel ? " with sequence_parallel" : "") + ", pp " +
                     std::to_string(layout.pp);
  if (layout.virtual_pp != 1) text += " with virtual_pp " + std::to_string(layout.virtual_pp);
  text += ", dp " + std::to_string(layout.dp) +
          (layout.distributed_optimizer ? " with distributed_optimizer" : "");
  if (layout.device == parallel::Device::kCuda) text += ", on cuda";
  return text + ", " + std::to_string(layout.threads) +
         (layout.threads == 1 ? " thread" : " threads");
}

}  // namespace retort::recipes
