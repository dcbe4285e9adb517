#include "engines/llamacpp/served_model.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/future_combinators.h"
#include "base/printable.h"
#include "engines/wire/answer_status.h"

namespace retort::engines::llamacpp {
namespace {

constexpr int64_t kMaxVocabRows = int64_t{1} << 26;
constexpr int64_t kMaxContext = INT32_MAX;
constexpr int64_t kMaxSlots = 1 << 16;
constexpr int kNoSuchDoor = 404;
// Arguments and metadata of each model that a router knows.
constexpr uint64_t kListBytes = uint64_t{16} << 20;

Ask get(std::string path) {
  return {.method = http::Method::kGet,
          .path = std::move(path),
          .body = {},
          .answer_bytes = kListBytes,
          .patient = false};
}

bool is_called(const Json& entry, const std::string& name) {
  if (text(entry, "id") == name) return true;
  const auto aliases = entry.find("aliases");
  return aliases != entry.end() && aliases->is_array() &&
         std::find(aliases->begin(), aliases->end(), Json(name)) != aliases->end();
}

// A router tells the arguments of each model's process; the file stands after --model.
std::string file_of(const Json& status) {
  const auto args = status.find("args");
  if (args == status.end() || !args->is_array()) return "";
  for (size_t i = 0; i + 1 < args->size(); ++i) {
    const bool named = (*args)[i] == "--model" || (*args)[i] == "-m";
    if (named && (*args)[i + 1].is_string()) return (*args)[i + 1].get<std::string>();
  }
  return "";
}

Listed listed_of(const Json& entry) {
  Listed listed{.name = text(entry, "id")};
  if (const auto status = entry.find("status"); status != entry.end()) {
    listed.status = text(*status, "value");
    if (listed.status.empty()) refuse_field("status.value", "is empty");
    listed.file = file_of(*status);
    listed.failed = status->contains("failed") && boolean(*status, "failed");
    if (status->contains("exit_code"))
      listed.exit_code = integer(*status, "exit_code", INT32_MIN, INT32_MAX);
  }
  if (entry.contains("meta") && entry["meta"].is_object())
    listed.vocab_rows = integer(entry["meta"], "n_vocab", 1, kMaxVocabRows);
  return listed;
}

std::string percent_encoded(const std::string& name) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : name) {
    if (kPlain.find(c) != std::string_view::npos) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kDigits[byte >> 4];
    encoded += kDigits[byte & 15];
  }
  return encoded;
}

ServedModel served_model_of(const Json& props, const Listed& listed) {
  ServedModel served{.routed = listed.routed()};
  served.state.served_model = listed.name;
  served.state.vocab_rows = listed.vocab_rows;
  served.num_slots = integer(props, "total_slots", 1, kMaxSlots);
  served.state.context_tokens =
      integer(member(props, "default_generation_settings"), "n_ctx", 1, kMaxContext);
  if (props.contains("build_info")) served.state.version = text(props, "build_info");
  return served;
}

}  // namespace

Listed find_listed(const Json& list, const std::string& served_model) {
  const Json& entries = array(list, "data");
  std::string names;
  for (const Json& entry : entries) {
    if (!served_model.empty() && is_called(entry, served_model)) return listed_of(entry);
    names += (names.empty() ? "" : ", ") + printable(text(entry, "id"));
  }
  if (served_model.empty() && entries.size() == 1) return listed_of(entries[0]);

  const std::string there = names.empty() ? "no model at all" : names;
  if (served_model.empty())
    throw Error(ErrorCode::kMismatch,
                "served_model is empty, which means the only one listed, but the server lists " +
                    there + "; name one");
  throw Error(ErrorCode::kMismatch,
              "served_model: the server does not list " + served_model + " but " + there);
}

Future<Listed> list_model(Server& server, const std::string& served_model, Deadline deadline) {
  return server.ask<Listed>(get("/v1/models"), deadline, [served_model](const Json& list) {
    return find_listed(list, served_model);
  });
}

namespace {

// False if there is no /health, which a proxy in front of the server may not pass on.
Future<bool> has_health(Server& server, Deadline deadline) {
  return then_outcome(server.ask(get("/health"), deadline), [](Outcome<Json> outcome) {
    if (!outcome.error) return true;
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (status_of(error) != kNoSuchDoor) throw;
      return false;
    }
  });
}

// Asks a server without /health for its models instead: one that lists them serves them. One with
// neither is no llama-server, which no waiting mends, so its error is kMismatch.
Future<Listed> list_without_health(Server& server, const std::string& served_model,
                                   Deadline deadline) {
  return map_error(list_model(server, served_model, deadline), [](const Error& error) {
    if (status_of(error) != kNoSuchDoor) return error;
    return with_advice(error, ErrorCode::kMismatch,
                       "neither /health nor /v1/models is there: no llama-server listens at this "
                       "address, or not below this path");
  });
}

}  // namespace

Future<ServedModel> read_served_model(Server& server, const std::string& served_model,
                                      Deadline deadline) {
  // The order follows from what a router needs: /props takes the model's name, which the list
  // tells, and only a model that is loaded has its vocabulary in the list, so that is read once
  // more at the end.
  return has_health(server, deadline)
      .then([&server, served_model, deadline](bool healthy) {
        return healthy ? list_model(server, served_model, deadline)
                       : list_without_health(server, served_model, deadline);
      })
      .then([&server, deadline](const Listed& listed) {
        const std::string query = listed.routed() ? "?model=" + percent_encoded(listed.name) : "";
        return server.ask<ServedModel>(
            get("/props" + query), deadline,
            [listed](const Json& props) { return served_model_of(props, listed); });
      })
      .then([&server, deadline](ServedModel served) {
        // A router may have loaded the model just now, for /props.
        return list_model(server, served.state.served_model, deadline)
            .then([&server, served](const Listed& listed) mutable {
              return server.with_address([&] {
                if (listed.vocab_rows == 0)
                  throw Error(ErrorCode::kUnavailable,
                              "the model " + listed.name + " is not loaded" +
                                  (listed.routed() ? ", but " + listed.status : ""));
                served.state.vocab_rows = listed.vocab_rows;
                return served;
              });
            });
      });
}

}  // namespace retort::engines::llamacpp
