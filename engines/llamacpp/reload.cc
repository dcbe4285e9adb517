#include "engines/llamacpp/reload.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "engines/wire/plain_admin.h"

namespace retort::engines::llamacpp {
namespace {

constexpr std::chrono::milliseconds kFirstPause{20};
constexpr std::chrono::milliseconds kLongestPause{1000};

}  // namespace

ReloadRun::ReloadRun(Session& session, std::string path, Deadline deadline)
    : Run(session.loop()), session_(session), path_(std::move(path)), deadline_(deadline) {}

void ReloadRun::begin() {
  if (std::filesystem::path(path_).extension() != ".gguf")
    throw Error(ErrorCode::kInvalidArgument,
                "llama.cpp loads GGUF files, and " + path_ + " is none; use weights.via: gguf");
  refuse_plain_admin(session_.server().base(), session_.options().allow_plain_admin,
                     "loading models");

  // What the session knows of the model is dropped first: whatever comes of this run, the next
  // request reads it anew.
  session_.forget();
  await(list_model(session_.server(), session_.options().served_model, deadline_),
        [this](const Listed& listed) {
          session_.server().with_address([&] { check(listed); });
          model_ = listed.name;
          if (listed.status == "unloaded")
            load();
          else
            unload();
        });
}

void ReloadRun::check(const Listed& listed) const {
  if (!listed.routed())
    throw Error(ErrorCode::kUnavailable,
                "this llama-server has one model for its life and cannot load another; start it as "
                "a router (--models-dir FOLDER --models-max 1, a build with the router), or start "
                "it anew with the file " +
                    path_);
  const std::string wanted = std::filesystem::path(path_).filename();
  const std::string served = listed.file.empty()
                                 ? listed.name + ".gguf"
                                 : std::filesystem::path(listed.file).filename().string();
  if (wanted != served)
    throw Error(ErrorCode::kMismatch, "the router serves " + listed.name + " from the file " +
                                          served + ", and the new weights are in " + wanted +
                                          "; write them to the file of the model that is served");
}

void ReloadRun::unload() {
  await(post("/models/unload"),
        [this](const Json&) { wait_for("unloaded", kFirstPause, [this] { load(); }); });
}

void ReloadRun::load() {
  await(post("/models/load"),
        [this](const Json&) { wait_for("loaded", kFirstPause, [this] { finish({}); }); });
}

// The router loads and unloads behind its answer, and only its list of models tells when it is
// done. So the list is asked for again, with pauses that double up to kLongestPause.
void ReloadRun::wait_for(const std::string& status, Duration pause, std::function<void()> step) {
  await(list_model(session_.server(), model_, deadline_),
        [this, status, pause, step = std::move(step)](const Listed& listed) mutable {
          if (listed.status == status) {
            step();
            return;
          }
          // Its process is gone, and nobody else starts it.
          if (status == "loaded" && listed.status == "unloaded")
            session_.server().with_address([&] {
              throw Error(ErrorCode::kUnavailable,
                          "the router could not load " + model_ +
                              (listed.failed ? ": its process ended with code " +
                                                   std::to_string(listed.exit_code)
                                             : "") +
                              "; see the server's log");
            });

          const Deadline at(std::min(Deadline::after(pause).time(), deadline_.time()));
          await(loop().pause_until(at),
                [this, status, pause, step = std::move(step)](Empty) mutable {
                  if (deadline_.expired())
                    throw Error(ErrorCode::kTimeout, "the model " + model_ + " was not " + status +
                                                         " by the deadline; raise load_timeout");
                  const Duration longer = std::min<Duration>(pause * 2, kLongestPause);
                  wait_for(status, longer, std::move(step));
                });
        });
}

// The request is not sent again if it breaks: where the first one arrived, the router refuses the
// second.
Future<Json> ReloadRun::post(const std::string& path) {
  return session_.server().ask(
      {.path = path, .body = {http::piece_of(Json{{"model", model_}}.dump())}, .repeatable = false},
      deadline_);
}

}  // namespace retort::engines::llamacpp
