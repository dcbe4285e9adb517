#include "recipes/checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "models/checkpoint.h"
#include "recipes/checkpoints.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

std::string write_loop_state(const LoopState& state) {
  const nlohmann::ordered_json json = {{"format", 1},
                                       {"step", state.step},
                                       {"epoch", state.cursor.epoch},
                                       {"packs_consumed", state.cursor.packs_consumed},
                                       {"total_steps", state.cursor.total_steps},
                                       {"num_tokens", state.num_tokens},
                                       {"seed", state.seed},
                                       {"dp", state.dp},
                                       {"threads", state.threads},
                                       {"data_fingerprint", state.data_fingerprint}};
  return json.dump(2) + "\n";
}

}  // namespace

LoopState read_loop_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state" / "loop.json";
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    if (json.at("format").get<int>() != 1)
      throw Error(ErrorCode::kMismatch, file.string() + " has a format this version does not read");
    LoopState state;
    state.step = json.at("step");
    state.cursor = {
        .epoch = json.at("epoch"), .packs_consumed = json.at("packs_consumed"), .total_steps = json.at("total_steps")};
    state.num_tokens = json.at("num_tokens");
    state.seed = json.at("seed");
    state.dp = json.at("dp");
    state.threads = json.at("threads");
    state.data_fingerprint = json.at("data_fingerprint");
    return state;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kCorrupt, file.string() + " cannot be read: " + e.what());
  }
}

CheckpointStore::CheckpointStore(fs::path run_folder, fs::path tokenizer_source, int64_t save_total_limit)
    : run_folder_(std::move(run_folder)), tokenizer_source_(std::move(tokenizer_source)), save_total_limit_(save_total_limit) {}

fs::path CheckpointStore::save(const roles::Trainer& trainer, parallel::World& world, const LoopState& state) const {
  const fs::path folder = checkpoint_path(run_folder_, state.step);
  std::exception_ptr failure;
  std::string message;
  if (world.rank() == 0) {
    try {
      write_folder_atomically(folder, [&](const fs::path& temporary) {
        const models::Decoder& decoder = trainer.decoder();
        models::save_decoder(decoder, decoder.head_weight().scalar_type(), tokenizer_source_, temporary);
        fs::create_directory(temporary / "state");
        trainer.save_state(temporary / "state");
        write_file_atomically(temporary / "state" / "loop.json", write_loop_state(state));
        mark_complete(temporary);
      });
      prune_checkpoints(run_folder_, save_total_limit_);
    } catch (const std::exception& e) {
      failure = std::current_exception();
      message = std::string("checkpoint ") + folder.string() + " was not saved: " + e.what();
    }
  }
  try {
    parallel::agree_or_throw(world.all(), message);
  } catch (const Error&) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
  RETORT_LOG(kInfo) << "saved " << folder.string();
  return folder;
}

}  // namespace retort::recipes
